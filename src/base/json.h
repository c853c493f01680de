// JSON files with errors that name the file and the key. Includes only nlohmann's forward header; .cc files that touch
// values include <nlohmann/json.hpp> themselves.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace sinter::base {

// Parses text; `origin` (a path, a request) stands in the error with the byte position.
nlohmann::json parse_json(std::string_view text, std::string_view origin);
nlohmann::json load_json(const std::string& path);
// Pretty-printed with two spaces, atomically.
void save_json(const std::string& path, const nlohmann::json& value);

}  // namespace sinter::base
