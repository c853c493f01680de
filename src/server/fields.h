// Reading the fields of a JSON request: types and ranges are checked, errors name the field.
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace sinter::server {

using Json = nlohmann::ordered_json;

// The body as an object; a 400 for anything else, or nested deeper than 200 levels.
Json parse_body(std::string_view body);
// Compact, bytes that are no UTF-8 replaced.
std::string dump_json(const Json& value);

// A field that is absent or null counts as not given. The object must outlive this.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  const Json* find(const std::string& name) const;  // null when not given
  std::optional<std::string> text(const std::string& name) const;
  std::optional<bool> boolean(const std::string& name) const;
  std::optional<int64_t> integer(const std::string& name, int64_t least, int64_t most) const;
  std::optional<double> number(const std::string& name, double least, double most) const;
  std::vector<std::string> texts(const std::string& name, size_t most) const;  // a text or a list of them
  std::vector<int32_t> ids(const std::string& name, size_t most) const;
  const Json* object(const std::string& name) const;
  const Json* array(const std::string& name) const;
  // A field with a meaning that is not served: a 400 unless it is absent, null, or equal to `neutral`.
  void refuse_unless(const std::string& name, const Json& neutral) const;
  // Every field that is not one of `known` is refused; a field that is almost one of them is a slip.
  void check_known(const std::vector<std::string>& known) const;
  void check_slips(const std::vector<std::string>& known) const;

 private:
  const Json& object_;
};

}  // namespace sinter::server
