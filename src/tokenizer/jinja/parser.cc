#include "tokenizer/jinja/parser.h"

#include <algorithm>

#include "base/text.h"
#include "tokenizer/jinja/expression_parser.h"

namespace sinter::tokenizer::jinja {
namespace {

// Whether a macro's body mentions one of Jinja's implicit names.
class NameFinder {
 public:
  explicit NameFinder(std::string_view name) : name_(name) {}

  bool in(const Statements& body) const {
    return std::any_of(body.begin(), body.end(), [&](const auto& statement) { return in(*statement); });
  }

 private:
  bool in(const ExprPtr& expr) const {
    if (!expr) return false;
    if (expr->kind == ExprKind::name && expr->name == name_) return true;
    auto any = [&](const std::vector<ExprPtr>& list) {
      return std::any_of(list.begin(), list.end(), [&](const ExprPtr& item) { return in(item); });
    };
    const CallArguments& a = expr->arguments;
    return any(expr->items) || any(a.positional) || in(a.list) || in(a.dict) ||
           std::any_of(a.named.begin(), a.named.end(), [&](const auto& named) { return in(named.second); });
  }

  bool in(const Statement& s) const {
    return in(s.expr) || in(s.filter) || in(s.body) || in(s.else_body) ||
           std::any_of(s.branches.begin(), s.branches.end(),
                       [&](const Branch& b) { return in(b.test) || in(b.body); }) ||
           std::any_of(s.assignments.begin(), s.assignments.end(), [&](const auto& a) { return in(a.second); }) ||
           std::any_of(s.parameters.begin(), s.parameters.end(),
                       [&](const MacroParameter& p) { return in(p.standard); });
  }

  std::string_view name_;
};

using StatementPtr = std::unique_ptr<Statement>;

class TemplateParser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  Statements run() {
    Statements body = parse_body({});
    if (current().kind != TokenKind::end) fail_found("the end of the template");
    return body;
  }

 private:
  // Statements until a block whose name is in `ends`; that name is the current token afterwards. The last of them is
  // the one that must come.
  Statements parse_body(std::initializer_list<std::string_view> ends) {
    Level level(*this);
    Statements body;
    for (;;) {
      Token token = current();
      if (token.kind == TokenKind::end) {
        if (ends.size() == 0) return body;
        fail(fmt::format("the template ends, but '{{% {} %}}' is missing", *(ends.end() - 1)));
      }
      take();
      StatementPtr statement;
      if (token.kind == TokenKind::text) {
        statement = make(StatementKind::text, token.line);
        statement->text = std::move(token.text);
      } else if (token.kind == TokenKind::variable_begin) {
        statement = make(StatementKind::output, token.line);
        statement->expr = parse_tuple();
        if (current().kind != TokenKind::variable_end) fail_found("'}}'");
        take();
      } else {
        if (current().kind != TokenKind::name) fail_found("the name of a block");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) return body;
        statement = parse_block();
      }
      body.push_back(std::move(statement));
    }
  }

  static StatementPtr make(StatementKind kind, int line) {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = line;
    return statement;
  }

  void end_block() {
    if (current().kind != TokenKind::block_end) fail_found("'%}'");
    take();
  }

  StatementPtr parse_block() {
    Token name = take();
    if (name.text == "if") return parse_if(name.line);
    if (name.text == "for") return parse_for(name.line);
    if (name.text == "set") return parse_set(name.line);
    if (name.text == "macro") return parse_macro(name.line);
    if (name.text == "call") return parse_call_block(name.line);
    if (name.text == "filter") return parse_filter_block(name.line);
    if (name.text == "with") return parse_with(name.line);
    if (name.text == "generation") return parse_generation(name.line);
    if (name.text == "break" || name.text == "continue") {
      if (loops_ == 0) fail_at(name_, name.line, fmt::format("'{}' stands outside of a loop", name.text));
      end_block();
      return make(name.text == "break" ? StatementKind::break_loop : StatementKind::continue_loop, name.line);
    }
    for (const char* other : {"include", "import", "from", "extends", "block", "autoescape", "do", "trans"}) {
      if (name.text == other) {
        fail_at(name_, name.line, fmt::format("the block '{}' is not part of chat templates", name.text));
      }
    }
    static const std::vector<std::string> kBlocks{"if",      "elif",       "else",          "endif",     "for",
                                                  "endfor",  "set",        "endset",        "macro",     "endmacro",
                                                  "call",    "endcall",    "filter",        "endfilter", "with",
                                                  "endwith", "generation", "endgeneration", "break",     "continue"};
    fail_at(name_, name.line, fmt::format("unknown block '{}'{}", name.text, base::did_you_mean(name.text, kBlocks)));
  }

  StatementPtr parse_if(int line) {
    auto statement = make(StatementKind::condition, line);
    for (;;) {
      Branch branch;
      branch.test = parse_tuple(false);
      end_block();
      branch.body = parse_body({"elif", "else", "endif"});
      statement->branches.push_back(std::move(branch));
      Token next = take();
      if (next.text == "elif") continue;
      if (next.text == "else") {
        end_block();
        statement->branches.push_back({nullptr, parse_body({"endif"})});
        take();
      }
      end_block();
      return statement;
    }
  }

  AssignTarget parse_target(bool with_attribute, bool with_tuple = true) {
    Level level(*this);
    AssignTarget target;
    for (bool is_first = true;; is_first = false) {
      if (!is_first && (is_name("in") || is_op("=") || is_op(")") || current().kind == TokenKind::block_end)) break;
      AssignTarget part;
      if (skip_op("(")) {
        part = parse_target(with_attribute);
        expect_op(")");
      } else {
        part.name = expect_identifier();
        static constexpr std::string_view kReserved[] = {"true", "True", "false", "False", "none", "None"};
        if (std::find(std::begin(kReserved), std::end(kReserved), part.name) != std::end(kReserved)) {
          fail(fmt::format("'{}' cannot be assigned to", part.name));
        }
        if (with_attribute && skip_op(".")) part.attribute = expect_identifier();
      }
      bool has_comma = with_tuple && skip_op(",");
      if (is_first && !has_comma) return part;
      target.is_tuple = true;
      target.parts.push_back(std::move(part));
      if (!has_comma) break;
    }
    return target;
  }

  StatementPtr parse_for(int line) {
    auto statement = make(StatementKind::loop, line);
    statement->target = parse_target(false);
    if (!skip_name("in")) fail_found("'in'");
    statement->expr = parse_tuple(false, {"recursive"});
    if (skip_name("if")) statement->filter = parse_expression();
    statement->is_recursive = skip_name("recursive");
    end_block();
    ++loops_;
    statement->body = parse_body({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      end_block();
      statement->else_body = parse_body({"endfor"});
      take();
    }
    end_block();
    return statement;
  }

  StatementPtr parse_set(int line) {
    AssignTarget target = parse_target(true);
    bool is_block = !skip_op("=");
    auto statement = make(is_block ? StatementKind::set_block : StatementKind::set, line);
    statement->target = std::move(target);
    if (!is_block) {
      statement->expr = parse_tuple();
      end_block();
      return statement;
    }
    if (statement->target.is_tuple) fail("a block set has one target");
    if (skip_op("|")) statement->expr = parse_bare_filters();
    end_block();
    statement->body = parse_closed_body("endset");
    take();
    end_block();
    return statement;
  }

  std::vector<MacroParameter> parse_parameters() {
    std::vector<MacroParameter> parameters;
    expect_op("(");
    while (!is_op(")")) {
      if (!parameters.empty()) {
        expect_op(",");
        if (is_op(")")) break;
      }
      MacroParameter parameter;
      parameter.name = expect_identifier();
      if (skip_op("=")) {
        parameter.standard = parse_expression();
      } else if (!parameters.empty() && parameters.back().standard) {
        fail(fmt::format("parameter '{}' without a default stands after one with", parameter.name));
      }
      parameters.push_back(std::move(parameter));
    }
    expect_op(")");
    return parameters;
  }

  // A body that a break cannot leave.
  Statements parse_closed_body(std::string_view end) {
    int loops = std::exchange(loops_, 0);
    Statements body = parse_body({end});
    loops_ = loops;
    return body;
  }

  void parse_macro_body(Statement& statement, std::string_view end) {
    end_block();
    statement.body = parse_closed_body(end);
    take();
    end_block();
    statement.takes_varargs = NameFinder("varargs").in(statement.body);
    statement.takes_kwargs = NameFinder("kwargs").in(statement.body);
    statement.takes_caller = NameFinder("caller").in(statement.body);
  }

  StatementPtr parse_macro(int line) {
    auto statement = make(StatementKind::macro, line);
    statement->text = expect_identifier();
    statement->parameters = parse_parameters();
    parse_macro_body(*statement, "endmacro");
    return statement;
  }

  StatementPtr parse_call_block(int line) {
    auto statement = make(StatementKind::call_block, line);
    if (is_op("(")) statement->parameters = parse_parameters();
    statement->expr = parse_expression();
    if (statement->expr->kind != ExprKind::call) fail("'call' needs the call of a macro, as in {% call name() %}");
    parse_macro_body(*statement, "endcall");
    return statement;
  }

  StatementPtr parse_filter_block(int line) {
    auto statement = make(StatementKind::filter_block, line);
    statement->expr = parse_bare_filters();
    end_block();
    statement->body = parse_closed_body("endfilter");
    take();
    end_block();
    return statement;
  }

  StatementPtr parse_with(int line) {
    auto statement = make(StatementKind::with, line);
    while (current().kind != TokenKind::block_end) {
      if (!statement->assignments.empty()) expect_op(",");
      AssignTarget target = parse_target(false, false);
      expect_op("=");
      statement->assignments.emplace_back(std::move(target), parse_expression());
    }
    end_block();
    statement->body = parse_body({"endwith"});
    take();
    end_block();
    return statement;
  }

  StatementPtr parse_generation(int line) {
    auto statement = make(StatementKind::generation, line);
    end_block();
    statement->body = parse_closed_body("endgeneration");
    take();
    end_block();
    return statement;
  }

  int loops_ = 0;  // for statements around the current place
};

}  // namespace

Statements parse_template(std::string_view source, const std::string& template_name, const WhiteSpace& space) {
  return TemplateParser(tokenize(source, template_name, space), template_name).run();
}

}  // namespace sinter::tokenizer::jinja
