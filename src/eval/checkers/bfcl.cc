#include "eval/checkers/bfcl.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using jinja::Kind;

enum class Type { text, integer, floating, boolean, list, tuple, dict, other };

Type type_of(const Value& value) {
  switch (value.kind()) {
    case Kind::text:
      return Type::text;
    case Kind::integer:
      return Type::integer;
    case Kind::floating:
      return Type::floating;
    case Kind::boolean:
      return Type::boolean;
    case Kind::list:
      return value.list()->is_tuple ? Type::tuple : Type::list;
    case Kind::dict:
      return Type::dict;
    default:
      return Type::other;
  }
}

Type declared(const std::string& name) {
  if (name == "integer") return Type::integer;
  if (name == "float") return Type::floating;
  if (name == "boolean") return Type::boolean;
  if (name == "array" || name == "tuple") return Type::list;
  if (name == "dict") return Type::dict;
  return Type::text;  // string, any
}

bool is_empty_text(const Value& value) { return value.is(Kind::text) && value.text().empty(); }

const std::vector<Value>& items_of(const Value& list) {
  static const std::vector<Value> kNone;
  return list.is(Kind::list) ? list.list()->items : kNone;
}

// Texts are compared without blanks and some marks, in lower case.
Value standard(const Value& value) {
  if (value.is(Kind::text)) {
    std::string text;
    for (char c : value.text()) {
      if (std::string_view(" ,./-_*^").find(c) == std::string_view::npos) text += c == '\'' ? '"' : c;
    }
    return tokenizer::lowercase_unicode(text);
  }
  if (!value.is(Kind::list)) return value;
  std::vector<Value> items;
  for (const Value& item : items_of(value)) items.push_back(item.is(Kind::text) ? standard(item) : item);
  return jinja::make_list(std::move(items));
}

bool is_among(const Value& value, const Value& answers, bool is_standard) {
  const Value own = is_standard ? standard(value) : value;
  return std::any_of(items_of(answers).begin(), items_of(answers).end(),
                     [&](const Value& answer) { return values_equal(own, is_standard ? standard(answer) : answer); });
}

// Key by key against each possible dict; "" among a key's answers: it may be left out.
bool dict_fits(const Value& value, const std::vector<Value>& answers) {
  for (const Value& answer : answers) {
    if (!answer.is(Kind::dict)) continue;
    bool fits = true;
    for (const auto& [key, item] : value.dict()->items()) {
      const Value* possible = answer.dict()->find(key);
      fits = fits && possible && is_among(item, *possible, true);
    }
    for (const auto& [key, possible] : answer.dict()->items()) {
      const bool is_optional = std::any_of(items_of(possible).begin(), items_of(possible).end(), is_empty_text);
      fits = fits && (value.dict()->find(key) || is_optional);
    }
    if (fits) return true;
  }
  return false;
}

bool dict_list_fits(const Value& value, const Value& answers) {
  for (const Value& answer : items_of(answers)) {
    if (!answer.is(Kind::list) || items_of(answer).size() != items_of(value).size()) continue;
    bool fits = true;
    for (size_t i = 0; i < items_of(value).size(); ++i) {
      const Value& item = items_of(value)[i];
      fits = fits && item.is(Kind::dict) && dict_fits(item, {items_of(answer)[i]});
    }
    if (fits) return true;
  }
  return false;
}

// Whether a value has the declared type; `is_variable` where the answers have another one, which the value has too.
bool type_fits(const Value& value, const Value& answers, Type expected, const Type* nested, bool& is_variable) {
  std::optional<Type> answered;
  for (const Value& answer : items_of(answers)) {
    if (!is_empty_text(answer)) {
      answered = type_of(answer);
      break;
    }
  }
  is_variable = answered && *answered != expected;
  if (type_of(value) == expected) {
    if (!nested) return true;
    for (const Value& answer : items_of(answers)) {
      bool fits = true;
      if (answer.is(Kind::list)) {
        for (const Value& item : items_of(value)) {
          bool unused = false;
          fits = fits && type_fits(item, answer, *nested, nullptr, unused);
        }
      }
      if (fits) return true;
    }
    return false;
  }
  if (answered && type_of(value) == *answered) {
    is_variable = true;
    return true;
  }
  return false;
}

bool value_fits(Value value, const Value& description, const Value& answers) {
  const Value* type_name = find_field(description, "type");
  const std::string name = type_name ? value_text(*type_name) : "string";
  const Type expected = declared(name);
  std::optional<Type> nested;
  if (name == "array" || name == "tuple") {
    const Value* items = find_field(description, "items");
    const Value* inner = items ? find_field(*items, "type") : nullptr;
    if (inner) nested = declared(value_text(*inner));
  }
  if (name == "tuple" && type_of(value) == Type::tuple) value = jinja::make_list(items_of(value));
  if (expected == Type::floating && type_of(value) == Type::integer) value = Value(value.number());
  bool is_variable = false;
  if (!type_fits(value, answers, expected, nested ? &*nested : nullptr, is_variable)) return false;
  if (!is_variable) {
    if (expected == Type::dict) return dict_fits(value, items_of(answers));
    if (expected == Type::list && nested == Type::dict) return dict_list_fits(value, answers);
    if (expected == Type::text || expected == Type::list) return is_among(value, answers, true);
  }
  return is_among(value, answers, false);
}

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

const Value* find_function(const Value& functions, const std::string& name) {
  for (const Value& function : items_of(functions)) {
    const Value* own = find_field(function, "name");
    if (own && value_text(*own) == name) return &function;
  }
  return nullptr;
}

bool call_fits(const Value& functions, const Value& call, const Value& truth, bool has_underscores) {
  const auto& [name, possible] = truth.dict()->items().at(0);
  const Value* function = find_function(functions, name.text());
  if (!function) return false;
  const std::string written = has_underscores ? with_underscores(name.text()) : name.text();
  const Value* given = call.dict()->find(std::string_view(written));
  if (!given || !given->is(Kind::dict)) return false;
  const Value* parameters = find_field(*function, "parameters");
  const Value* properties = parameters ? find_field(*parameters, "properties") : nullptr;
  if (!properties) return false;
  if (const Value* required = find_field(*parameters, "required")) {
    for (const std::string& key : text_list(*required)) {
      if (!given->dict()->find(std::string_view(key))) return false;
    }
  }
  for (const auto& [key, value] : given->dict()->items()) {
    const Value *description = properties->dict()->find(key), *answers = possible.dict()->find(key);
    if (!description || !answers || !value_fits(value, *description, *answers)) return false;
  }
  for (const auto& [key, answers] : possible.dict()->items()) {
    const bool is_optional = std::any_of(items_of(answers).begin(), items_of(answers).end(), is_empty_text);
    if (!given->dict()->find(key) && !is_optional) return false;
  }
  return true;
}

}  // namespace

bool calls_match(const Value& functions, const std::optional<Value>& calls, const Value* truth,
                 const std::string& category, bool has_underscores) {
  if (category.starts_with("irrelevance")) return !calls || items_of(*calls).empty();
  if (!calls || !truth) return false;
  const std::vector<Value>&given = items_of(*calls), &wanted = items_of(*truth);
  if (given.size() != wanted.size()) return false;
  std::vector<bool> is_used(given.size());
  for (const Value& one : wanted) {
    bool found = false;
    for (size_t i = 0; i < given.size() && !found; ++i) {
      if (is_used[i] || !call_fits(functions, given[i], one, has_underscores)) continue;
      is_used[i] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

bool check_calls(const TaskDocument& document, const std::string& answer) {
  const Value *functions = find_field(document, "function"), *category = find_field(document, "category");
  SINTER_CHECK(functions && category, "'function' or 'category' is undefined");
  return calls_match(*functions, decode_calls(answer), find_field(document, "ground_truth"), value_text(*category));
}

}  // namespace sinter::eval
