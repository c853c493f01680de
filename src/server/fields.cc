#include "server/fields.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"

namespace sinter::server {

namespace {
constexpr int kMaxNesting = 200;

std::string shown(const Json& value) {
  std::string text = dump_json(value);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

// Counted on the text: a parser that builds values would recurse first.
void check_nesting(std::string_view body) {
  int depth = 0;
  bool is_text = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (is_text) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        is_text = false;
      }
    } else if (c == '"') {
      is_text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxNesting) throw ApiError(400, fmt::format("the body nests deeper than {} levels", kMaxNesting));
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}
}  // namespace

std::string dump_json(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json parse_body(std::string_view body) {
  check_nesting(body);
  Json value;
  try {
    value = Json::parse(body);
  } catch (const nlohmann::json::parse_error& e) {
    throw ApiError(400, fmt::format("the body is not JSON: error at byte {}", e.byte));
  } catch (const nlohmann::json::exception& e) {
    throw ApiError(400, "the body is not JSON: a number is out of range");
  }
  if (!value.is_object()) throw ApiError(400, "the body is not a JSON object");
  return value;
}

const Json* Fields::find(const std::string& name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

std::optional<std::string> Fields::text(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_string()) refuse(name, "'{}' is {}; expected a text", name, shown(*value));
  return value->get<std::string>();
}

std::optional<bool> Fields::boolean(const std::string& name) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_boolean()) refuse(name, "'{}' is {}; expected true or false", name, shown(*value));
  return value->get<bool>();
}

std::optional<int64_t> Fields::integer(const std::string& name, int64_t least, int64_t most) const {
  const Json* value = find(name);
  if (!value) return {};
  bool is_right = value->is_number_integer();
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) is_right = false;
  if (is_right) is_right = value->get<int64_t>() >= least && value->get<int64_t>() <= most;
  if (!is_right) refuse(name, "'{}' is {}; expected a whole number from {} to {}", name, shown(*value), least, most);
  return value->get<int64_t>();
}

std::optional<double> Fields::number(const std::string& name, double least, double most) const {
  const Json* value = find(name);
  if (!value) return {};
  const bool is_right = value->is_number() && value->get<double>() >= least && value->get<double>() <= most;
  if (!is_right) refuse(name, "'{}' is {}; expected a number from {} to {}", name, shown(*value), least, most);
  return value->get<double>();
}

std::vector<std::string> Fields::texts(const std::string& name, size_t most) const {
  const Json* value = find(name);
  if (!value) return {};
  if (value->is_string()) return {value->get<std::string>()};
  if (!value->is_array()) refuse(name, "'{}' is {}; expected a text or a list of texts", name, shown(*value));
  if (value->size() > most) refuse(name, "'{}' has {} entries; at most {} are taken", name, value->size(), most);
  std::vector<std::string> out;
  for (const Json& entry : *value) {
    if (!entry.is_string()) refuse(name, "'{}' has an entry {}; expected texts", name, shown(entry));
    out.push_back(entry.get<std::string>());
  }
  return out;
}

std::vector<int32_t> Fields::ids(const std::string& name, size_t most) const {
  const Json* value = find(name);
  if (!value) return {};
  if (!value->is_array()) refuse(name, "'{}' is {}; expected a list of token ids", name, shown(*value));
  if (value->size() > most) refuse(name, "'{}' has {} entries; at most {} are taken", name, value->size(), most);
  std::vector<int32_t> out;
  for (const Json& entry : *value) {
    const bool is_right = entry.is_number_integer() && entry.get<double>() >= 0 && entry.get<double>() <= INT32_MAX;
    if (!is_right) refuse(name, "'{}' has an entry {}; expected token ids", name, shown(entry));
    out.push_back(entry.get<int32_t>());
  }
  return out;
}

const Json* Fields::object(const std::string& name) const {
  const Json* value = find(name);
  if (value && !value->is_object()) refuse(name, "'{}' is {}; expected an object", name, shown(*value));
  return value;
}

const Json* Fields::array(const std::string& name) const {
  const Json* value = find(name);
  if (value && !value->is_array()) refuse(name, "'{}' is {}; expected a list", name, shown(*value));
  return value;
}

void Fields::refuse_unless(const std::string& name, const Json& neutral) const {
  const Json* value = find(name);
  if (value && *value != neutral) refuse(name, "'{}' is not supported by this server; leave it out", name);
}

void Fields::check_known(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end())
      refuse(key, "there is no field '{}'{}", key.substr(0, 60), base::did_you_mean(key, known));
  }
}

void Fields::check_slips(const std::vector<std::string>& known) const {
  for (const auto& [key, value] : object_.items()) {
    bool is_known = false;
    for (const std::string& name : known) is_known |= key == name;
    if (is_known) continue;
    for (const std::string& name : known) {
      if (base::is_slip(key, name)) refuse(key, "there is no field '{}'; did you mean '{}'?", key.substr(0, 60), name);
    }
  }
}

}  // namespace sinter::server
