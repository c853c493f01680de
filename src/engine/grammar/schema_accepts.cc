// Whether a value satisfies a schema, or two schemas can hold at once: for enum, const, oneOf and not.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/grammar/schema_fields.h"
#include "engine/grammar/schema_set.h"

namespace sinter::engine::grammar {

// Whether no value can satisfy both, as far as types, constants and required constant members tell.
bool SchemaSets::are_exclusive(const Json& a, const Json& b, int depth) const {
  if (a.is_boolean() || b.is_boolean()) return (a.is_boolean() && !a.get<bool>()) || (b.is_boolean() && !b.get<bool>());
  if (!a.is_object() || !b.is_object() || depth > 8) return false;
  if (a.contains("$ref")) return are_exclusive(resolve(text_of(a, "$ref")), b, depth + 1);
  if (b.contains("$ref")) return are_exclusive(a, resolve(text_of(b, "$ref")), depth + 1);
  auto values = [](const Json& s) -> std::vector<Json> {
    if (s.contains("const")) return {s["const"]};
    if (s.contains("enum") && s["enum"].is_array()) return {s["enum"].begin(), s["enum"].end()};
    return {};
  };
  auto types = [&](const Json& s) {
    uint32_t bits = s.contains("type") ? types_of(s["type"]) : kAllTypes;
    const auto list = values(s);
    if (!list.empty()) {
      uint32_t of_values = 0;
      for (const Json& v : list) of_values |= type_of(v);
      bits &= of_values;
    }
    return bits;
  };
  if (!(types(a) & types(b))) return true;
  const auto va = values(a), vb = values(b);
  if (!va.empty() && !vb.empty()) {
    return std::none_of(va.begin(), va.end(), [&](const Json& x) {
      return std::any_of(vb.begin(), vb.end(), [&](const Json& y) { return is_equal(x, y); });
    });
  }
  const bool are_objects = types(a) == kObject && types(b) == kObject;
  if (!are_objects || !a.contains("properties") || !b.contains("properties")) return false;
  if (!a["properties"].is_object() || !b["properties"].is_object()) return false;
  auto requires_name = [](const Json& s, const std::string& name) {
    return s.contains("required") && s["required"].is_array() &&
           std::find(s["required"].begin(), s["required"].end(), Json(name)) != s["required"].end();
  };
  for (const auto& [name, schema] : a["properties"].items()) {
    if (!b["properties"].contains(name) || !requires_name(a, name) || !requires_name(b, name)) continue;
    if (are_exclusive(schema, b["properties"][name], depth + 1)) return true;
  }
  return false;
}
bool SchemaSets::accepts_object(const Json& s, const Json& value, int depth) {
  const auto count = static_cast<int64_t>(value.size());
  if (s.contains("minProperties") && count < count_of(s, "minProperties")) return false;
  if (s.contains("maxProperties") && count > count_of(s, "maxProperties")) return false;
  if (s.contains("required")) {
    for (const Json& name : list_of(s, "required")) {
      if (!name.is_string() || !value.contains(name.get<std::string>())) return false;
    }
  }
  for (const auto& [name, member] : value.items()) {
    bool is_covered = false;
    if (s.contains("properties") && object_of(s, "properties").contains(name)) {
      is_covered = true;
      if (!accepts(s["properties"][name], member, depth + 1)) return false;
    }
    if (s.contains("patternProperties")) {
      for (const auto& [pattern, schema] : object_of(s, "patternProperties").items()) {
        if (!matches(pattern, name)) continue;
        is_covered = true;
        if (!accepts(schema, member, depth + 1)) return false;
      }
    }
    if (!is_covered && s.contains("additionalProperties") && !accepts(s["additionalProperties"], member, depth + 1))
      return false;
    if (s.contains("propertyNames") && !accepts(s["propertyNames"], Json(name), depth + 1)) return false;
  }
  return true;
}

bool SchemaSets::accepts(const Json& s, const Json& value, int depth) {
  if (s.is_boolean()) return s.get<bool>();
  SINTER_CHECK(s.is_object(), "a schema is {}; expected an object, true or false", s.type_name());
  SINTER_CHECK(depth < 100, "$ref: a value is checked against itself without end");
  budget_.spend(0);
  check_keywords(s);
  if (s.contains("$ref") && !accepts(resolve(text_of(s, "$ref")), value, depth + 1)) return false;
  if (s.contains("type") && !(types_of(s["type"]) & type_of(value))) return false;
  if (s.contains("const") && !is_equal(s["const"], value)) return false;
  auto any = [&](const char* name, auto holds) {
    const Json& list = list_of(s, name);
    return static_cast<size_t>(std::count_if(list.begin(), list.end(), holds));
  };
  auto branch_holds = [&](const Json& branch) { return accepts(branch, value, depth + 1); };
  if (s.contains("enum") && any("enum", [&](const Json& e) { return is_equal(e, value); }) == 0) return false;
  if (s.contains("allOf") && any("allOf", branch_holds) != s["allOf"].size()) return false;
  if (s.contains("anyOf") && any("anyOf", branch_holds) == 0) return false;
  if (s.contains("oneOf") && any("oneOf", branch_holds) != 1) return false;
  if (s.contains("not") && accepts(s["not"], value, depth + 1)) return false;
  if (value.is_number()) {
    const double n = value.get<double>();
    if (s.contains("minimum") && n < number_of(s, "minimum")) return false;
    if (s.contains("maximum") && n > number_of(s, "maximum")) return false;
    if (s.contains("exclusiveMinimum") && n <= number_of(s, "exclusiveMinimum")) return false;
    if (s.contains("exclusiveMaximum") && n >= number_of(s, "exclusiveMaximum")) return false;
    if (s.contains("multipleOf") && std::fmod(n, number_of(s, "multipleOf")) != 0) return false;
  }
  if (value.is_string()) {
    const auto text = value.get<std::string>();
    if (s.contains("minLength") && static_cast<int64_t>(char_count(text)) < count_of(s, "minLength")) return false;
    if (s.contains("maxLength") && static_cast<int64_t>(char_count(text)) > count_of(s, "maxLength")) return false;
    if (s.contains("pattern") && !matches(text_of(s, "pattern"), text)) return false;
  }
  if (value.is_array()) {
    const auto count = static_cast<int64_t>(value.size());
    if (s.contains("minItems") && count < count_of(s, "minItems")) return false;
    if (s.contains("maxItems") && count > count_of(s, "maxItems")) return false;
    SINTER_CHECK(!s.contains("uniqueItems") || s["uniqueItems"] == Json(false),
                 "uniqueItems: this keyword cannot be honoured");
    for (size_t i = 0; i < value.size(); ++i) {
      if (s.contains("prefixItems") && i < list_of(s, "prefixItems").size()) {
        if (!accepts(s["prefixItems"][i], value[i], depth + 1)) return false;
      } else if (s.contains("items") && !accepts(s["items"], value[i], depth + 1)) {
        return false;
      }
    }
  }
  return !value.is_object() || accepts_object(s, value, depth);
}

}  // namespace sinter::engine::grammar
