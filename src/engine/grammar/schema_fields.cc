#include "engine/grammar/schema_fields.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

namespace sinter::engine::grammar {

uint32_t type_bit(const std::string& name) {
  static const std::map<std::string, uint32_t> kBits{
      {"null", kNull},       {"boolean", kBoolean}, {"number", kNumber | kInteger},
      {"integer", kInteger}, {"string", kString},   {"array", kArray},
      {"object", kObject}};
  const auto at = kBits.find(name);
  SINTER_CHECK(at != kBits.end(), "type: '{}' is unknown", name.substr(0, 40));
  return at->second;
}

uint32_t types_of(const Json& type) {
  if (type.is_string()) return type_bit(type.get<std::string>());
  SINTER_CHECK(type.is_array(), "type: expected a name or a list of names");
  uint32_t bits = 0;
  for (const Json& name : type) {
    SINTER_CHECK(name.is_string(), "type: expected a name or a list of names");
    bits |= type_bit(name.get<std::string>());
  }
  return bits;
}

uint32_t type_of(const Json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_string()) return kString;
  if (value.is_array()) return kArray;
  if (value.is_object()) return kObject;
  const double number = value.get<double>();
  return number == std::floor(number) ? kInteger : kNumber;
}

int64_t count_of(const Json& schema, const char* name) {
  const Json& value = schema[name];
  const bool is_right = value.is_number() && value.get<double>() >= 0 && value.get<double>() < 1e9 &&
                        value.get<double>() == std::floor(value.get<double>());
  SINTER_CHECK(is_right, "{}: expected a whole number from 0", name);
  return static_cast<int64_t>(value.get<double>());
}

double number_of(const Json& schema, const char* name) {
  SINTER_CHECK(schema[name].is_number(), "{}: expected a number", name);
  const double value = schema[name].get<double>();
  SINTER_CHECK(std::fabs(value) < 1e17, "{}: {} is too large to be honoured", name, value);
  return value;
}

const Json& list_of(const Json& schema, const char* name) {
  SINTER_CHECK(schema[name].is_array(), "{}: expected a list", name);
  return schema[name];
}
const Json& object_of(const Json& schema, const char* name) {
  SINTER_CHECK(schema[name].is_object(), "{}: expected an object", name);
  return schema[name];
}
std::string text_of(const Json& schema, const char* name) {
  SINTER_CHECK(schema[name].is_string(), "{}: expected a text", name);
  return schema[name].get<std::string>();
}

size_t char_count(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

bool is_equal(const Json& a, const Json& b) { return nlohmann::json(a) == nlohmann::json(b); }

}  // namespace sinter::engine::grammar
