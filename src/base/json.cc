#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
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

// What the parser expected, by what it says it was reading: "... while parsing object key - unexpected ...".
std::string_view expected_in(std::string_view told) {
  constexpr std::pair<std::string_view, std::string_view> kExpected[] = {
      {"while parsing object key -", "a key in double quotes"},
      {"while parsing object separator -", "':' behind the key"},
      {"while parsing object -", "',' or '}'"},
      {"while parsing array -", "',' or ']'"},
      {"; expected end of input", "the end behind the value"},
  };
  for (const auto& [sign, expected] : kExpected) {
    if (told.find(sign) != std::string_view::npos) return expected;
  }
  return "a value";
}

bool is_control(char c) { return static_cast<uint8_t>(c) < 0x20 || c == 0x7f; }

// What is wrong at `at`, in our own words: the parser's speak of tokens and of its states.
std::string explain(std::string_view text, size_t at, std::string_view told) {
  constexpr size_t kShown = 20;
  if (told.find("invalid string: missing closing quote") != std::string_view::npos)
    return "a text has no closing quote";
  if (told.find("invalid string: control character") != std::string_view::npos)
    return "a text holds a line break, a tab or another control character; write it as \\n, \\t or \\u00XX";
  if (told.find("ill-formed UTF-8") != std::string_view::npos) return "the bytes are not UTF-8";
  if (told.find("invalid string:") != std::string_view::npos)
    return "'\\' is followed by what it cannot be; expected one of \" \\ / b f n r t u, behind u four hexadecimal "
           "digits";
  if (at >= text.size()) return fmt::format("the text ends, expected {}", expected_in(told));
  std::string_view found = text.substr(at, kShown);
  found = found.substr(0, std::find_if(found.begin(), found.end(), is_control) - found.begin());
  if (found.size() == kShown) {  // no half characters
    while (!found.empty() && (found.back() & 0x80)) found.remove_suffix(1);
  }
  if (found.empty())
    return fmt::format("found the byte 0x{:02x}, expected {}", static_cast<uint8_t>(text[at]), expected_in(told));
  return fmt::format("found '{}', expected {}", found, expected_in(told));
}

// "line 2, column 1: the text ends, expected a key in double quotes"
std::string locate(std::string_view text, const nlohmann::json::parse_error& error) {
  size_t at = std::min(error.byte > 0 ? error.byte - 1 : 0, text.size());
  if (std::string_view(error.what()).find("invalid literal") != std::string_view::npos) {  // from the word's beginning
    while (at > 0 && std::isalpha(static_cast<unsigned char>(text[at - 1]))) --at;
  }
  const std::string_view before = text.substr(0, at);
  const size_t newline = before.rfind('\n');
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const size_t column = newline == std::string_view::npos ? at + 1 : at - newline;
  return fmt::format("line {}, column {}: {}", line, column, explain(text, at, error.what()));
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view origin) {
  check_nesting(text, origin);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    fail("'{}' is not valid JSON: {}", origin, locate(text, e));
  } catch (const nlohmann::json::exception&) {
    fail("'{}' is not valid JSON: a number is out of range", origin);
  }
}

nlohmann::json load_json(const std::string& path) { return parse_json(read_file(path), path); }

void save_json(const std::string& path, const nlohmann::json& value) {
  write_file_atomic(path, value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace sinter::base
