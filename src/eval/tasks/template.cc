#include "eval/tasks/template.h"

#include <mutex>

#include "base/error.h"
#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/interpreter.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using jinja::Kind;

constexpr size_t kMaxWork = size_t{1} << 40;
constexpr jinja::WhiteSpace kWhiteSpace{.trim_blocks = false, .lstrip_blocks = false, .keep_trailing_newline = true};

// The source of "{{ expression }}" and nothing around it; "" for every other.
std::string sole_expression(std::string_view source) {
  if (!source.starts_with("{{") || !source.ends_with("}}") || source.size() < 4) return "";
  const std::string_view inner = source.substr(2, source.size() - 4);
  if (inner.find("{{") != std::string_view::npos || inner.find("}}") != std::string_view::npos) return "";
  return std::string(inner);
}

std::string regex_replace(const std::string& text, const std::string& pattern, const std::string& replacement) {
  static std::mutex mutex;
  static std::vector<std::pair<std::string, std::shared_ptr<PythonRegex>>> known;
  std::shared_ptr<PythonRegex> found;
  {
    const std::lock_guard lock(mutex);
    for (auto& [name, regex] : known) {
      if (name == pattern) found = regex;
    }
    if (!found) known.emplace_back(pattern, found = std::make_shared<PythonRegex>(pattern));
    return found->replace(text, replacement);
  }
}

// What templates of tasks can call besides Jinja's own functions.
std::vector<std::pair<std::string, Value>> make_functions() {
  auto replace = [](jinja::Runtime&, jinja::Arguments& arguments) -> Value {
    jinja::ArgumentReader reader(arguments, "regex_replace");
    const Value text = reader.require("text");
    const std::string pattern = reader.require_text("pattern"), with = reader.get_text("replacement", "");
    reader.finish();
    if (!text.is(Kind::list)) return Value(regex_replace(value_text(text), pattern, with));
    std::vector<Value> items;  // each item of a list
    for (const Value& item : text.list()->items) items.emplace_back(regex_replace(value_text(item), pattern, with));
    return jinja::make_list(std::move(items));
  };
  return {{"regex_replace", jinja::make_callable("regex_replace", replace)}};
}

}  // namespace

Value clone_value(const Value& value) {
  if (value.is(Kind::list) || value.is(Kind::iterator)) {
    std::vector<Value> items;
    for (const Value& item : value.is(Kind::list) ? value.list()->items : value.iterator()->items) {
      items.push_back(clone_value(item));
    }
    return jinja::make_list(std::move(items));
  }
  if (!value.is(Kind::dict)) return value;
  auto copy = jinja::make_dict();
  for (const auto& [key, item] : value.dict()->items()) copy->set(key, clone_value(item));
  copy->nesting = value.dict()->nesting;
  return copy;
}

std::string value_text(const Value& value) {
  jinja::Meter meter(kMaxWork);
  return jinja::to_text(value, meter);
}

bool values_equal(const Value& a, const Value& b) {
  jinja::Meter meter(kMaxWork);
  return jinja::equal(a, b, meter);
}

const Value* find_field(const TaskDocument& document, std::string_view key) {
  return document.is(Kind::dict) ? document.dict()->find(key) : nullptr;
}

std::vector<std::string> text_list(const Value& value) {
  SINTER_CHECK(value.is(Kind::list), "a list is needed, found {}", jinja::short_repr(value));
  std::vector<std::string> texts;
  for (const Value& item : value.list()->items) texts.push_back(value_text(item));
  return texts;
}

Template::Template(std::string source, std::string name)
    : source_(std::move(source)), name_(std::move(name)), is_set_(true) {
  auto parse = [&](const std::string& text) {
    return std::make_shared<const jinja::Statements>(jinja::parse_template(text, name_, kWhiteSpace));
  };
  body_ = parse(source_);
  if (const std::string inner = sole_expression(source_); !inner.empty())
    value_body_ = parse("{{ __keep(" + inner + ") }}");
}

std::string Template::run(const jinja::Statements& body, const TaskDocument& document,
                          const std::vector<std::pair<std::string, Value>>& more, Value* kept) const {
  static const std::vector<std::pair<std::string, Value>> kFunctions = make_functions();
  jinja::Interpreter interpreter(name_, jinja::Limits{});
  interpreter.is_strict = true;
  std::vector<std::pair<std::string, Value>> variables = kFunctions;
  if (document.is(Kind::dict)) {
    for (const auto& [key, value] : document.dict()->items()) {
      if (key.is(Kind::text)) variables.emplace_back(key.text(), value);
    }
  }
  variables.insert(variables.end(), more.begin(), more.end());
  if (kept) {
    auto keep = [kept](jinja::Runtime&, jinja::Arguments& arguments) -> Value {
      const Value& value = arguments.positional.at(0);
      if (value.is(Kind::undefined)) {
        const auto& hint = value.undefined_hint().hint;
        base::fail("{}", hint ? *hint : "a value is undefined");
      }
      *kept = clone_value(value);
      return Value("");
    };
    variables.emplace_back("__keep", jinja::make_callable("__keep", keep));
  }
  try {
    return interpreter.render(body, variables).text;
  } catch (const jinja::TemplateError& e) {
    // It is a task's template and no chat's.
    std::string what = e.what(), fields;
    if (what.starts_with("chat template ")) what.erase(0, 14);
    if (what.find("is undefined") == std::string::npos || !document.is(Kind::dict)) base::fail("{}", what);
    for (const auto& [key, value] : document.dict()->items()) fields += (fields.empty() ? "" : ", ") + value_text(key);
    base::fail("{}; the document has {}", what, fields.empty() ? "no fields" : fields);
  }
}

Value Template::evaluate(const TaskDocument& document, const std::vector<std::pair<std::string, Value>>& more) const {
  if (!body_) return constant_;
  if (const Value* field = find_field(document, source_)) return *field;
  if (!value_body_) return Value(run(*body_, document, more, nullptr));
  Value value;
  run(*value_body_, document, more, &value);
  return value;
}

std::string Template::text(const TaskDocument& document, const std::vector<std::pair<std::string, Value>>& more) const {
  return value_text(evaluate(document, more));
}

std::string Template::render(const TaskDocument& document,
                             const std::vector<std::pair<std::string, Value>>& more) const {
  return body_ ? run(*body_, document, more, nullptr) : value_text(constant_);
}

}  // namespace sinter::eval
