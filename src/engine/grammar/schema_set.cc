#include "engine/grammar/schema_set.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_fields.h"

namespace sinter::engine::grammar {
namespace {

const std::set<std::string> kHonoured{"type",
                                      "enum",
                                      "const",
                                      "properties",
                                      "required",
                                      "additionalProperties",
                                      "patternProperties",
                                      "propertyNames",
                                      "minProperties",
                                      "maxProperties",
                                      "items",
                                      "prefixItems",
                                      "minItems",
                                      "maxItems",
                                      "minLength",
                                      "maxLength",
                                      "pattern",
                                      "format",
                                      "minimum",
                                      "maximum",
                                      "exclusiveMinimum",
                                      "exclusiveMaximum",
                                      "multipleOf",
                                      "anyOf",
                                      "oneOf",
                                      "allOf",
                                      "not",
                                      "$ref",
                                      "$defs",
                                      "definitions",
                                      "$anchor",
                                      "$id",
                                      "$schema",
                                      "$comment",
                                      "title",
                                      "description",
                                      "default",
                                      "examples",
                                      "deprecated",
                                      "readOnly",
                                      "writeOnly",
                                      "$vocabulary",
                                      "contentEncoding",
                                      "contentMediaType",
                                      "contentSchema",
                                      "uniqueItems"};
const std::set<std::string> kRefused{"if",
                                     "then",
                                     "else",
                                     "dependentRequired",
                                     "dependentSchemas",
                                     "dependencies",
                                     "unevaluatedProperties",
                                     "unevaluatedItems",
                                     "contains",
                                     "minContains",
                                     "maxContains",
                                     "$dynamicRef",
                                     "$recursiveRef",
                                     "additionalItems"};

}  // namespace

void SchemaSets::add(SchemaSet& set, const Json& schema) const {
  if (schema.is_boolean()) {
    if (!schema.get<bool>()) set.is_impossible = true;
    return;
  }
  SINTER_CHECK(schema.is_object(), "a schema is {}; expected an object, true or false", schema.type_name());
  const bool is_there =
      std::any_of(set.parts.begin(), set.parts.end(), [&](const auto& p) { return p.schema == &schema; });
  if (!is_there) set.parts.push_back({&schema, 0});
}

const Json& SchemaSets::resolve(const std::string& ref) const {
  if (ref == "#") return root_;
  SINTER_CHECK(ref.starts_with("#"), "$ref: '{}' is outside the schema, which cannot be honoured", ref.substr(0, 80));
  std::string decoded;
  for (size_t i = 1; i < ref.size(); ++i) {
    if (ref[i] == '%' && i + 2 < ref.size() && std::isxdigit(ref[i + 1]) && std::isxdigit(ref[i + 2])) {
      decoded += static_cast<char>(std::stoi(ref.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += ref[i];
    }
  }
  if (decoded.starts_with("/")) {
    try {
      const Json& found = root_.at(Json::json_pointer(decoded));
      return found;
    } catch (const nlohmann::json::exception&) {
      base::fail("$ref: there is nothing at '{}'", ref.substr(0, 80));
    }
  }
  for (const char* place : {"$defs", "definitions"}) {
    if (!root_.contains(place) || !root_[place].is_object()) continue;
    for (const auto& [name, schema] : root_[place].items()) {
      if (schema.is_object() && schema.contains("$anchor") && schema["$anchor"] == decoded) return schema;
    }
  }
  base::fail("$ref: there is no anchor '{}'", ref.substr(0, 80));
}

void SchemaSets::check_keywords(const Json& schema) const {
  for (const auto& [key, value] : schema.items()) {
    if (kHonoured.contains(key)) continue;
    SINTER_CHECK(!kRefused.contains(key), "{}: this keyword cannot be honoured", key);
    for (const std::string& known : kHonoured) {
      SINTER_CHECK(!base::is_slip(key, known), "{}: unknown keyword; did you mean '{}'?", key.substr(0, 60), known);
    }
  }
}

void SchemaSets::flatten(SchemaSet& set) {
  for (size_t i = 0; i < set.parts.size() && !set.is_impossible; ++i) {
    budget_.spend(0);
    if (set.parts[i].done & 4) continue;
    set.parts[i].done |= 4;
    const Json& schema = *set.parts[i].schema;
    check_keywords(schema);
    SINTER_CHECK(set.parts.size() < 1000, "allOf: more than 1000 schemas together");
    if (schema.contains("$id") && &schema != &root_)
      base::fail("$id: schemas with an address of their own cannot be honoured");
    if (schema.contains("$ref")) add(set, resolve(text_of(schema, "$ref")));
    if (schema.contains("allOf")) {
      for (const Json& part : list_of(schema, "allOf")) add(set, part);
    }
  }
  if (set.is_impossible) set.parts.clear();
  std::sort(set.parts.begin(), set.parts.end());
}

bool SchemaSets::expand(const SchemaSet& set, std::vector<SchemaSet>& ways) {
  for (size_t i = 0; i < set.parts.size(); ++i) {
    const Json& schema = *set.parts[i].schema;
    for (const auto& [name, bit] : {std::pair<const char*, uint32_t>{"anyOf", 1}, {"oneOf", 2}}) {
      if (!schema.contains(name) || (set.parts[i].done & bit)) continue;
      const Json& branches = list_of(schema, name);
      SINTER_CHECK(!branches.empty(), "{}: the list is empty", name);
      if (bit == 2) {
        for (size_t a = 0; a < branches.size(); ++a) {
          for (size_t b = a + 1; b < branches.size(); ++b) {
            budget_.spend(0);
            SINTER_CHECK(are_exclusive(branches[a], branches[b], 0),
                         "oneOf: branches {} and {} may both hold, which cannot be ruled out; use anyOf, or a constant "
                         "that tells them apart",
                         a, b);
          }
        }
      }
      for (const Json& branch : branches) {
        SchemaSet way = set;
        way.parts[i].done |= bit;
        add(way, branch);
        ways.push_back(std::move(way));
      }
      return true;
    }
  }
  return false;
}

// ---- keywords ------------------------------------------------------------------------------------------------------

void SchemaSets::add_not(const Json& schema, Constraints& c) const {
  const Json& inner = schema["not"];
  if (inner.is_boolean()) {
    if (inner.get<bool>()) c.types = 0;
    return;
  }
  SINTER_CHECK(inner.is_object(), "not: expected a schema");
  if (inner.empty()) {
    c.types = 0;
    return;
  }
  SINTER_CHECK(inner.size() == 1 && inner.contains("type"), "not: only the negation of types can be honoured");
  const uint32_t bits = types_of(inner["type"]);
  SINTER_CHECK(!(bits & kInteger) || (bits & kNumber), "not: numbers that are no integers cannot be honoured");
  c.types &= ~bits;
}

void SchemaSets::add_constraints(const Json& s, Constraints& c) {
  c.schemas.push_back(&s);
  if (s.contains("type")) c.types &= types_of(s["type"]);
  if (s.contains("not")) add_not(s, c);
  auto raise = [&](const char* name, int64_t& out) {
    if (s.contains(name)) out = std::max(out, count_of(s, name));
  };
  auto lower = [&](const char* name, int64_t& out) {
    if (s.contains(name)) out = out < 0 ? count_of(s, name) : std::min(out, count_of(s, name));
  };
  raise("minLength", c.min_length);
  lower("maxLength", c.max_length);
  raise("minItems", c.min_items);
  lower("maxItems", c.max_items);
  raise("minProperties", c.min_properties);
  lower("maxProperties", c.max_properties);
  if (s.contains("pattern")) c.patterns.push_back(text_of(s, "pattern"));
  if (s.contains("format")) c.formats.push_back(text_of(s, "format"));
  auto least = [&](const char* name, bool is_exclusive) {
    if (!s.contains(name)) return;
    const double value = number_of(s, name);
    if (c.range.least && (*c.range.least > value || (*c.range.least == value && c.range.excludes_least))) return;
    c.range.least = value;
    c.range.excludes_least = is_exclusive;
  };
  auto most = [&](const char* name, bool is_exclusive) {
    if (!s.contains(name)) return;
    const double value = number_of(s, name);
    if (c.range.most && (*c.range.most < value || (*c.range.most == value && c.range.excludes_most))) return;
    c.range.most = value;
    c.range.excludes_most = is_exclusive;
  };
  least("minimum", false);
  least("exclusiveMinimum", true);
  most("maximum", false);
  most("exclusiveMaximum", true);
  if (s.contains("multipleOf")) {
    SINTER_CHECK(!c.range.multiple_of || *c.range.multiple_of == number_of(s, "multipleOf"),
                 "multipleOf: two of them cannot be honoured");
    c.range.multiple_of = number_of(s, "multipleOf");
  }
}

Constraints SchemaSets::constraints(const SchemaSet& set) {
  Constraints c;
  std::optional<std::vector<Json>> values;
  for (const auto& part : set.parts) {
    add_constraints(*part.schema, c);
    const Json& s = *part.schema;
    if (!values && s.contains("const")) values = std::vector<Json>{s["const"]};
    if (!values && s.contains("enum")) values.emplace(list_of(s, "enum").begin(), list_of(s, "enum").end());
  }
  if (values) {  // few enough to be asked one by one
    SINTER_CHECK(values->size() <= 4096, "enum: more than 4096 values");
    std::erase_if(*values, [&](const Json& value) {
      budget_.spend(0);
      if (!(c.types & (type_of(value) == kInteger ? kInteger : type_of(value)))) return true;
      return std::any_of(set.parts.begin(), set.parts.end(),
                         [&](const auto& p) { return !accepts(*p.schema, value, 0); });
    });
    c.values = std::move(values);
    return c;
  }
  for (const Json* s : c.schemas) {
    const bool is_unique = s->contains("uniqueItems") && (*s)["uniqueItems"] != Json(false);
    SINTER_CHECK(!is_unique || !(c.types & kArray) || (c.max_items >= 0 && c.max_items <= 1),
                 "uniqueItems: this keyword cannot be honoured");
  }
  if (c.types & kString) {
    for (const std::string& format : c.formats)
      SINTER_CHECK(!format_regex(format).empty(), "format: '{}' cannot be honoured", format.substr(0, 40));
  }
  return c;
}

const CharNfa& SchemaSets::regex(const std::string& pattern) {
  auto at = regexes_.find(pattern);
  if (at == regexes_.end()) at = regexes_.emplace(pattern, compile_regex(pattern, RegexMode::search, budget_)).first;
  return at->second;
}

bool SchemaSets::matches(const std::string& pattern, const std::string& text) { return regex(pattern).matches(text); }

CharNfa SchemaSets::string_texts(const Constraints& c) {
  CharNfa nfa = of_length(0, -1, budget_);
  for (const std::string& pattern : c.patterns) {
    try {
      nfa = intersected(nfa, regex(pattern), budget_);
    } catch (const base::Error& e) {
      base::fail("pattern: {}", e.what());
    }
  }
  for (const std::string& format : c.formats)
    nfa = intersected(nfa, compile_regex(format_regex(format), RegexMode::whole, budget_), budget_);
  if (c.min_length > 0 || c.max_length >= 0) {
    SINTER_CHECK(c.min_length <= 2000 && c.max_length <= 2000,
                 "maxLength: above 2000 together with pattern or format cannot be honoured");
    nfa = intersected(nfa, of_length(c.min_length, c.max_length, budget_), budget_);
  }
  return nfa;
}

// ---- arrays and objects --------------------------------------------------------------------------------------------

size_t SchemaSets::prefix_length(const Constraints& c) const {
  size_t longest = 0;
  for (const Json* s : c.schemas) {
    if (s->contains("prefixItems")) longest = std::max(longest, list_of(*s, "prefixItems").size());
    if (s->contains("items"))
      SINTER_CHECK(!(*s)["items"].is_array(), "items: a list of schemas is prefixItems since 2020-12");
  }
  return longest;
}

SchemaSet SchemaSets::item(const Constraints& c, size_t index) const {
  SchemaSet set;
  for (const Json* s : c.schemas) {
    if (s->contains("prefixItems") && index < (*s)["prefixItems"].size()) {
      add(set, (*s)["prefixItems"][index]);
    } else if (s->contains("items")) {
      add(set, (*s)["items"]);
    }
  }
  return set;
}

std::vector<Property> SchemaSets::properties(const Constraints& c) {
  std::vector<Property> out;
  std::set<std::string> names, required;
  std::vector<std::string> order;
  for (const Json* s : c.schemas) {
    if (s->contains("properties")) {
      for (const auto& [name, schema] : object_of(*s, "properties").items()) {
        if (names.insert(name).second) order.push_back(name);
      }
    }
    if (s->contains("required")) {
      for (const Json& name : list_of(*s, "required")) {
        SINTER_CHECK(name.is_string(), "required: expected names");
        required.insert(name.get<std::string>());
        if (names.insert(name.get<std::string>()).second) order.push_back(name.get<std::string>());
      }
    }
  }
  for (const std::string& name : order) {
    code_points(name, "a property's name");
    Property property{name, required.contains(name), {}};
    for (const Json* s : c.schemas) {
      bool is_covered = false;
      if (s->contains("properties") && (*s)["properties"].contains(name)) {
        add(property.set, (*s)["properties"][name]);
        is_covered = true;
      }
      if (s->contains("patternProperties")) {
        for (const auto& [pattern, schema] : object_of(*s, "patternProperties").items()) {
          if (!matches(pattern, name)) continue;
          add(property.set, schema);
          is_covered = true;
        }
      }
      if (!is_covered && s->contains("additionalProperties")) add(property.set, (*s)["additionalProperties"]);
      if (s->contains("propertyNames") && !accepts((*s)["propertyNames"], name, 0)) property.set.is_impossible = true;
    }
    out.push_back(std::move(property));
  }
  return out;
}

std::vector<std::pair<CharNfa, SchemaSet>> SchemaSets::free_keys(const Constraints& c,
                                                                 const std::vector<Property>& named) {
  std::vector<std::string> words;
  for (const Property& p : named) words.push_back(p.name);
  CharNfa keys = words.empty() ? of_length(0, 64, budget_) : complemented(of_words(words), budget_);
  if (!words.empty()) keys = intersected(keys, of_length(0, 64, budget_), budget_);
  std::vector<std::string> patterns;
  for (const Json* s : c.schemas) {
    if (s->contains("patternProperties")) {
      for (const auto& [pattern, schema] : object_of(*s, "patternProperties").items()) {
        if (std::find(patterns.begin(), patterns.end(), pattern) == patterns.end()) patterns.push_back(pattern);
      }
    }
    if (!s->contains("propertyNames")) continue;
    SchemaSet names;
    add(names, (*s)["propertyNames"]);
    flatten(names);
    if (names.is_impossible) return {};
    Constraints of_names = constraints(names);
    if (of_names.values) {
      std::vector<std::string> allowed;
      for (const Json& value : *of_names.values) {
        if (value.is_string()) allowed.push_back(value.get<std::string>());
      }
      keys = intersected(keys, of_words(allowed), budget_);
      continue;
    }
    std::vector<SchemaSet> ways;
    SINTER_CHECK(!expand(names, ways), "propertyNames: anyOf and oneOf within it cannot be honoured");
    if (!(of_names.types & kString)) return {};
    keys = intersected(keys, string_texts(of_names), budget_);
  }
  SINTER_CHECK(patterns.size() <= 4, "patternProperties: more than 4 patterns cannot be honoured");
  std::vector<std::pair<CharNfa, SchemaSet>> out;
  for (uint32_t chosen = 0; chosen < (1u << patterns.size()); ++chosen) {
    SchemaSet set;
    for (const Json* s : c.schemas) {
      bool is_covered = false;
      for (size_t i = 0; i < patterns.size(); ++i) {
        if (!(chosen >> i & 1) || !s->contains("patternProperties") || !(*s)["patternProperties"].contains(patterns[i]))
          continue;
        add(set, (*s)["patternProperties"][patterns[i]]);
        is_covered = true;
      }
      if (!is_covered && s->contains("additionalProperties")) add(set, (*s)["additionalProperties"]);
    }
    if (set.is_impossible) continue;
    CharNfa own = keys;
    for (size_t i = 0; i < patterns.size(); ++i)
      own = intersected(own, chosen >> i & 1 ? regex(patterns[i]) : complemented(regex(patterns[i]), budget_), budget_);
    if (!own.is_empty()) out.emplace_back(std::move(own), std::move(set));
  }
  return out;
}

}  // namespace sinter::engine::grammar
