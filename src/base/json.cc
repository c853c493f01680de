#include "base/json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace sinter::base {

namespace {

// The parser itself takes any depth, but copying, printing and destroying what it gives goes down by calls.
void check_nesting(std::string_view text, std::string_view origin) {
  constexpr int kMost = 256;
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      SINTER_CHECK(++depth <= kMost, "'{}': more than {} brackets inside each other at byte {}", origin, kMost, i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view origin) {
  check_nesting(text, origin);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    // The parser quotes the whole value it was reading.
    constexpr size_t kHead = 200, kTail = 60;
    std::string reason = e.what();
    if (const size_t end = reason.find("] "); reason.starts_with("[json.exception") && end != std::string::npos)
      reason.erase(0, end + 2);  // the library's own code
    if (reason.size() > kHead + kTail) reason.replace(kHead, reason.size() - kHead - kTail, " ... ");
    fail("'{}' is not valid JSON: {}", origin, reason);
  }
}

nlohmann::json load_json(const std::string& path) { return parse_json(read_file(path), path); }

void save_json(const std::string& path, const nlohmann::json& value) {
  write_file_atomic(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace sinter::base
