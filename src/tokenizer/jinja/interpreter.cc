#include "tokenizer/jinja/interpreter.h"

#include <algorithm>

namespace sinter::tokenizer::jinja {

using base::fail;

class Interpreter::Level {
 public:
  explicit Level(Interpreter& owner) : owner_(owner) {
    SINTER_CHECK(owner.depth_ < owner.limits_.max_depth, "macros and expressions nest deeper than {} levels",
                 owner.limits_.max_depth);
    ++owner_.depth_;
    owner_.charge(1);
  }
  ~Level() { --owner_.depth_; }
  Level(const Level&) = delete;

 private:
  Interpreter& owner_;
};

class Interpreter::InnerScope {
 public:
  InnerScope(Interpreter& owner, ScopePtr parent) : owner_(owner), outer_(owner.scope_) {
    owner.scope_ = std::make_shared<Scope>();
    owner.scope_->parent = std::move(parent);
  }
  ~InnerScope() { owner_.scope_ = outer_; }
  InnerScope(const InnerScope&) = delete;

 private:
  Interpreter& owner_;
  ScopePtr outer_;
};

class Interpreter::Capture {
 public:
  explicit Capture(Interpreter& owner) : owner_(owner), outer_(std::exchange(owner.out_, text_.get())) {}
  ~Capture() { owner_.out_ = outer_; }
  Capture(const Capture&) = delete;
  std::string take() { return std::move(*text_); }

 private:
  std::unique_ptr<std::string> text_ = std::make_unique<std::string>();
  Interpreter& owner_;
  std::string* outer_;
};

Rendered Interpreter::render(const Statements& body, const std::vector<std::pair<std::string, Value>>& variables) {
  globals_ = make_globals();
  scope_ = std::make_shared<Scope>();
  keep(scope_);
  for (const auto& [name, value] : variables) scope_->variables[name] = value;
  out_ = &rendered_.text;
  try {
    run(body);
  } catch (const TemplateError&) {
    throw;
  } catch (const base::Error& e) {
    fail_at(name_, line_, e.what());
  }
  return std::move(rendered_);
}

void Interpreter::write(const std::string& text) {
  charge_text(text.size());
  SINTER_CHECK(out_->size() + text.size() <= limits_.max_output_bytes,
               "the template writes more than {} bytes and was stopped", limits_.max_output_bytes);
  *out_ += text;
}

void Interpreter::write_value(const Value& value) {
  if (is_strict && value.is(Kind::undefined)) {
    const auto& hint = value.undefined_hint().hint;
    fail("{}", hint ? *hint : "a value is undefined");
  }
  write(to_text(value, meter));
}

// ---- statements ----------------------------------------------------------------------------------------------------

Interpreter::Flow Interpreter::run(const Statements& body) {
  for (const auto& statement : body) {
    if (Flow flow = run(*statement); flow != Flow::normal) return flow;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run(const Statement& s) {
  Level level(*this);
  line_ = s.line;
  switch (s.kind) {
    case StatementKind::text:
      write(s.text);
      break;
    case StatementKind::output:
      write_value(evaluate(*s.expr));
      break;
    case StatementKind::condition:
      return run_condition(s);
    case StatementKind::loop:
      return run_loop(s, evaluate(*s.expr), 1);
    case StatementKind::set:
      assign(s.target, evaluate(*s.expr));
      break;
    case StatementKind::set_block:
      run_set_block(s);
      break;
    case StatementKind::macro:
      scope_->variables[s.text] = make_macro(s, s.text);
      break;
    case StatementKind::call_block:
      run_call_block(s);
      break;
    case StatementKind::filter_block:
      write(to_text(apply_filters(*s.expr, Value(capture(s.body))), meter));
      break;
    case StatementKind::with:
      return run_with(s);
    case StatementKind::generation:
      run_generation(s);
      break;
    case StatementKind::break_loop:
      return Flow::broken;
    case StatementKind::continue_loop:
      return Flow::continued;
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_condition(const Statement& s) {
  for (const Branch& branch : s.branches) {
    if (!branch.test || is_true(evaluate(*branch.test))) return run(branch.body);
  }
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_loop(const Statement& s, const Value& iterable, int depth) {
  std::vector<Value> items = iterate(iterable);
  if (s.filter) {
    std::vector<Value> chosen;
    for (Value& item : items) {
      InnerScope scope(*this, scope_);
      assign(s.target, item);
      if (is_true(evaluate(*s.filter))) chosen.push_back(std::move(item));
    }
    items = std::move(chosen);
  }
  auto loop = std::make_shared<Loop>();
  loop->depth = depth;
  loop->items = make_list(std::move(items)).list();
  loop->nesting = loop->items->nesting;
  if (s.is_recursive) {
    keep(loop);  // it holds the function that holds the scope that holds it
    loop->recurse = make_callable("loop", [this, &s, depth, scope = scope_](Runtime&, Arguments& arguments) {
      SINTER_CHECK(arguments.positional.size() == 1 && arguments.named.empty(), "loop(...) takes one argument");
      Level level(*this);
      Capture inner(*this);
      ScopePtr outer = std::exchange(scope_, scope);
      run_loop(s, arguments.positional[0], depth + 1);
      scope_ = outer;
      return Value(inner.take());
    });
  }
  size_t count = loop->items->items.size();
  for (size_t i = 0; i < count; ++i) {
    InnerScope scope(*this, scope_);
    loop->index = i;
    assign(s.target, loop->items->items[i]);
    scope_->variables["loop"] = Value(loop);
    if (run(s.body) == Flow::broken) break;
  }
  if (count == 0 && !s.else_body.empty()) {
    InnerScope scope(*this, scope_);
    return run(s.else_body);
  }
  return Flow::normal;
}

std::string Interpreter::capture(const Statements& body) {
  InnerScope scope(*this, scope_);
  Capture inner(*this);
  run(body);
  return inner.take();
}

void Interpreter::run_set_block(const Statement& s) {
  Value value(capture(s.body));
  assign(s.target, s.expr ? apply_filters(*s.expr, value) : value);
}

void Interpreter::run_call_block(const Statement& s) {
  const Expr& expr = *s.expr;
  Value callee = evaluate(*expr.items[0]);
  Arguments arguments = evaluate_arguments(expr.arguments);
  arguments.named.emplace_back("caller", make_macro(s, "caller"));
  write(to_text(call(callee, arguments), meter));
}

Interpreter::Flow Interpreter::run_with(const Statement& s) {
  std::vector<Value> values;  // all are computed outside, before any is set
  for (const auto& [target, expr] : s.assignments) values.push_back(evaluate(*expr));
  InnerScope scope(*this, scope_);
  for (size_t i = 0; i < values.size(); ++i) assign(s.assignments[i].first, values[i]);
  return run(s.body);
}

void Interpreter::run_generation(const Statement& s) {
  size_t begin = out_->size();
  {
    InnerScope scope(*this, scope_);
    run(s.body);
  }
  if (out_ == &rendered_.text) rendered_.generated.emplace_back(begin, out_->size());
}

void Interpreter::assign(const AssignTarget& target, const Value& value) {
  if (target.is_tuple) {
    check_defined(value, "unpacked");
    std::vector<Value> items = iterate(value);
    SINTER_CHECK(items.size() == target.parts.size(), "{} values cannot be unpacked into {} names", items.size(),
                 target.parts.size());
    for (size_t i = 0; i < items.size(); ++i) assign(target.parts[i], items[i]);
    return;
  }
  if (target.attribute.empty()) {
    scope_->variables[target.name] = value;
    return;
  }
  Value object = evaluate_name(target.name);
  SINTER_CHECK(object.is(Kind::name_space), "'{}.{}' cannot be set: '{}' is a {}, not a namespace", target.name,
               target.attribute, target.name, type_name(object));
  object.name_space()->attributes.set(Value(target.attribute), value);
}

// ---- macros --------------------------------------------------------------------------------------------------------

Value Interpreter::make_macro(const Statement& s, std::string name) {
  keep(scope_);  // the scope holds the macro and the macro the scope
  return make_callable(name, [this, &s, name, scope = scope_](Runtime&, Arguments& arguments) {
    return call_macro(s, name, scope, arguments);
  });
}

Value Interpreter::call_macro(const Statement& s, const std::string& name, const ScopePtr& scope,
                              Arguments& arguments) {
  Level level(*this);
  int line = line_;
  InnerScope inner_scope(*this, scope);
  bind_parameters(s, name, arguments);
  Capture inner(*this);
  run(s.body);
  line_ = line;
  return Value(inner.take());
}

void Interpreter::bind_parameters(const Statement& s, const std::string& name, Arguments& arguments) {
  std::unordered_map<std::string, Value>& variables = scope_->variables;
  auto take_named = [&](const std::string& parameter) -> std::pair<bool, Value> {
    for (auto it = arguments.named.begin(); it != arguments.named.end(); ++it) {
      if (it->first != parameter) continue;
      Value value = it->second;
      arguments.named.erase(it);
      return {true, value};
    }
    return {false, Value()};
  };
  size_t num_given = arguments.positional.size();
  for (size_t i = 0; i < s.parameters.size(); ++i) {
    const MacroParameter& parameter = s.parameters[i];
    auto [is_named, value] = take_named(parameter.name);
    SINTER_CHECK(!is_named || i >= num_given, "macro '{}' gets its argument '{}' twice", name, parameter.name);
    if (i < num_given) {
      variables[parameter.name] = arguments.positional[i];
    } else if (is_named) {
      variables[parameter.name] = value;
    } else if (parameter.standard) {
      variables[parameter.name] = evaluate(*parameter.standard);
    } else {
      variables[parameter.name] = Value::undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    }
  }
  if (s.takes_caller) {
    auto [is_given, caller] = take_named("caller");
    variables["caller"] = is_given ? caller : Value::undefined("No caller defined");
  }
  if (s.takes_kwargs) {
    auto kwargs = make_dict();
    for (const auto& [key, value] : std::exchange(arguments.named, {})) {
      kwargs->nesting = std::max(kwargs->nesting, nesting_around(value));
      kwargs->set(Value(key), value);
    }
    variables["kwargs"] = Value(kwargs);
  }
  SINTER_CHECK(arguments.named.empty(), "macro '{}' takes no argument '{}'", name, arguments.named[0].first);
  size_t num_taken = std::min(num_given, s.parameters.size());
  if (s.takes_varargs) {
    variables["varargs"] =
        make_tuple({arguments.positional.begin() + static_cast<ptrdiff_t>(num_taken), arguments.positional.end()});
  } else {
    SINTER_CHECK(num_given == num_taken, "macro '{}' takes {} arguments, {} were given", name, s.parameters.size(),
                 num_given);
  }
}

// ---- expressions ---------------------------------------------------------------------------------------------------

Value Interpreter::evaluate(const Expr& expr) {
  Level level(*this);
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::constant:
      return expr.value;
    case ExprKind::name:
      return evaluate_name(expr.name);
    case ExprKind::list:
      return make_list(evaluate_all(expr.items));
    case ExprKind::tuple:
      return make_tuple(evaluate_all(expr.items));
    case ExprKind::dict:
      return evaluate_dict(expr);
    case ExprKind::negate:
      return evaluate_negate(expr);
    case ExprKind::binary:
      return evaluate_binary(expr);
    case ExprKind::concat:
      return evaluate_concat(expr);
    case ExprKind::comparison:
      return evaluate_comparison(expr);
    case ExprKind::condition:
      return evaluate_condition(expr);
    case ExprKind::filter:
      return apply_filters(expr, Value());
    case ExprKind::test: {
      Value input = evaluate(*expr.items[0]);
      Arguments arguments = evaluate_arguments(expr.arguments);
      line_ = expr.line;
      return test(expr.name, input, arguments);
    }
    case ExprKind::attribute: {
      Value object = evaluate(*expr.items[0]);
      line_ = expr.line;
      return attribute(object, expr.name);
    }
    case ExprKind::item: {
      Value object = evaluate(*expr.items[0]);
      Value key = evaluate(*expr.items[1]);
      line_ = expr.line;
      return item(object, key);
    }
    case ExprKind::slice:
      return evaluate_slice(expr);
    case ExprKind::call:
      return evaluate_call(expr);
  }
  return Value();
}

Value Interpreter::evaluate_name(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope; scope = scope->parent.get()) {
    auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return found->second;
  }
  if (const Value* global = globals_->find(std::string_view(name))) return *global;
  return Value::undefined(fmt::format("'{}' is undefined", name));
}

std::vector<Value> Interpreter::evaluate_all(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) values.push_back(evaluate(*expr));
  return values;
}

Value Interpreter::evaluate_dict(const Expr& expr) {
  auto dict = make_dict();
  for (size_t i = 0; i + 1 < expr.items.size(); i += 2) {
    Value key = evaluate(*expr.items[i]);
    Value value = evaluate(*expr.items[i + 1]);
    dict->nesting = std::max({dict->nesting, nesting_around(value), nesting_around(key)});
    dict->set(key, std::move(value));
  }
  return dict;
}

Value Interpreter::evaluate_negate(const Expr& expr) {
  Value value = evaluate(*expr.items[0]);
  if (expr.name == "not") return !is_true(value);
  check_defined(value, fmt::format("used with '{}'", expr.name));
  SINTER_CHECK(value.is_number(), "'{}' before a {} has no meaning", expr.name, type_name(value));
  if (value.is(Kind::floating)) return expr.name == "-" ? -value.number() : value.number();
  return expr.name == "-" ? binary("-", Value(0), value) : Value(value.integer());
}

Value Interpreter::evaluate_binary(const Expr& expr) {
  Value left = evaluate(*expr.items[0]);
  if (expr.name == "and") return is_true(left) ? evaluate(*expr.items[1]) : left;
  if (expr.name == "or") return is_true(left) ? left : evaluate(*expr.items[1]);
  Value right = evaluate(*expr.items[1]);
  line_ = expr.line;
  return binary(expr.name, left, right);
}

Value Interpreter::evaluate_concat(const Expr& expr) {
  std::string out;
  for (const ExprPtr& item : expr.items) {
    out += to_text(evaluate(*item), meter);
    check_size(out.size());
  }
  return out;
}

Value Interpreter::evaluate_comparison(const Expr& expr) {
  Value left = evaluate(*expr.items[0]);
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    Value right = evaluate(*expr.items[i + 1]);
    line_ = expr.line;
    const std::string& op = expr.ops[i];
    bool holds = op == "=="       ? equal(left, right, meter)
                 : op == "!="     ? !equal(left, right, meter)
                 : op == "in"     ? contains(right, left)
                 : op == "not in" ? !contains(right, left)
                 : op == "<"      ? compare(left, right, meter) < 0
                 : op == "<="     ? compare(left, right, meter) <= 0
                 : op == ">"      ? compare(left, right, meter) > 0
                                  : compare(left, right, meter) >= 0;
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Interpreter::evaluate_condition(const Expr& expr) {
  if (is_true(evaluate(*expr.items[1]))) return evaluate(*expr.items[0]);
  if (expr.items[2]) return evaluate(*expr.items[2]);
  return Value::undefined("the inline 'if' is false and has no 'else'");
}

Value Interpreter::evaluate_slice(const Expr& expr) {
  Value object = evaluate(*expr.items[0]);
  Value bounds[3];
  for (size_t i = 0; i < 3; ++i) bounds[i] = expr.items[i + 1] ? evaluate(*expr.items[i + 1]) : Value::none();
  line_ = expr.line;
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Arguments Interpreter::evaluate_arguments(const CallArguments& given) {
  Arguments arguments;
  arguments.positional = evaluate_all(given.positional);
  for (const auto& [name, expr] : given.named) arguments.named.emplace_back(name, evaluate(*expr));
  if (given.list) {
    for (Value& value : iterate(evaluate(*given.list))) arguments.positional.push_back(std::move(value));
  }
  if (given.dict) {
    Value dict = evaluate(*given.dict);
    SINTER_CHECK(dict.is(Kind::dict), "'**' before a {}; expected a dict", type_name(dict));
    for (const auto& [key, value] : dict.dict()->items()) {
      SINTER_CHECK(key.is(Kind::text), "'**' needs text keys, found {}", short_repr(key));
      arguments.named.emplace_back(key.text(), value);
    }
  }
  return arguments;
}

Value Interpreter::evaluate_call(const Expr& expr) {
  Value callee = evaluate(*expr.items[0]);
  Arguments arguments = evaluate_arguments(expr.arguments);
  line_ = expr.line;
  return call(callee, arguments);
}

Value Interpreter::apply_filters(const Expr& expr, const Value& innermost) {
  const ExprPtr& inner = expr.items[0];
  Value input = !inner                            ? innermost
                : inner->kind == ExprKind::filter ? apply_filters(*inner, innermost)
                                                  : evaluate(*inner);
  Arguments arguments = evaluate_arguments(expr.arguments);
  line_ = expr.line;
  return filter(expr.name, input, arguments);
}

}  // namespace sinter::tokenizer::jinja
