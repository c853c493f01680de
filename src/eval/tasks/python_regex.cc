#include "eval/tasks/python_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/error.h"

namespace sinter::eval {

struct PythonRegex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  std::string pattern;
  ~Code() {
    pcre2_match_data_free(data);
    pcre2_code_free(code);
  }
};

namespace {

std::string error_text(int number) {
  PCRE2_UCHAR message[256];
  pcre2_get_error_message(number, message, sizeof message);
  return reinterpret_cast<const char*>(message);
}

// Python's \Z is the very end, PCRE2's \z, and its \s takes the separators 0x1c to 0x1f too; the rest that tasks use is
// written alike.
std::string to_pcre2(std::string_view pattern) {
  std::string out;
  size_t class_begin = std::string_view::npos;  // of the first sign in a class that could end it
  for (size_t i = 0; i < pattern.size(); ++i) {
    const bool is_in_class = class_begin != std::string_view::npos;
    if (pattern[i] == '\\' && i + 1 < pattern.size()) {
      const char c = pattern[++i];
      if (c == 's') {
        out += is_in_class ? R"(\s\x1c-\x1f)" : R"([\s\x1c-\x1f])";
      } else if (c == 'S' && !is_in_class) {
        out += R"([^\s\x1c-\x1f])";
      } else {
        out += '\\';
        out += c == 'Z' ? 'z' : c;
      }
      continue;
    }
    out += pattern[i];
    if (!is_in_class && pattern[i] == '[') {
      class_begin = i + 1 < pattern.size() && pattern[i + 1] == '^' ? i + 2 : i + 1;
    } else if (is_in_class && pattern[i] == ']' && i > class_begin) {
      class_begin = std::string_view::npos;
    }
  }
  return out;
}

size_t next_character(std::string_view text, size_t at) {
  ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80) ++at;
  return at;
}

}  // namespace

PythonRegex::PythonRegex(std::string_view pattern, Flags flags) : code_(new Code) {
  uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C;
  if (flags.ignore_case) options |= PCRE2_CASELESS;
  if (flags.multiline) options |= PCRE2_MULTILINE;
  if (flags.dot_all) options |= PCRE2_DOTALL;
  code_->pattern = pattern;
  const std::string own = to_pcre2(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  code_->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(own.data()), own.size(), options, &error, &offset, context.get());
  SINTER_CHECK(code_->code, "the regular expression '{}' is wrong at position {}: {}", pattern, offset,
               error_text(error));
  code_->data = pcre2_match_data_create_from_pattern(code_->code, nullptr);
}

PythonRegex::~PythonRegex() = default;
PythonRegex::PythonRegex(PythonRegex&&) noexcept = default;
PythonRegex& PythonRegex::operator=(PythonRegex&&) noexcept = default;

std::vector<RegexMatch> PythonRegex::find_all(std::string_view text) const {
  std::vector<RegexMatch> matches;
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  uint32_t options = 0;
  for (size_t pos = 0; pos <= text.size();) {
    const int rc = pcre2_match(code_->code, subject, text.size(), pos, options, code_->data, nullptr);
    if (rc == PCRE2_ERROR_NOMATCH) {
      if (options == 0) break;
      options = 0;  // nothing but the empty match stood here: go on behind the next character
      pos = next_character(text, pos);
      continue;
    }
    SINTER_CHECK(rc > 0, "the regular expression '{}' cannot be matched in a text of {} bytes: {}", code_->pattern,
                 text.size(), error_text(rc));
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(code_->data);
    RegexMatch match{range[0], range[1], {}};
    for (uint32_t g = 1; g < pcre2_get_ovector_count(code_->data); ++g) {
      const bool is_set = static_cast<int>(g) < rc && range[2 * g] != PCRE2_UNSET;
      match.groups.emplace_back(is_set ? text.substr(range[2 * g], range[2 * g + 1] - range[2 * g]) : "");
    }
    options = match.begin == match.end ? PCRE2_NOTEMPTY_ATSTART | PCRE2_ANCHORED : 0;
    pos = match.end;
    matches.push_back(std::move(match));
  }
  return matches;
}

bool PythonRegex::search(std::string_view text, RegexMatch* match, bool at_start) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data() ? text.data() : "");
  const int rc = pcre2_match(code_->code, subject, text.size(), 0, at_start ? PCRE2_ANCHORED : 0, code_->data, nullptr);
  if (rc == PCRE2_ERROR_NOMATCH) return false;
  SINTER_CHECK(rc > 0, "the regular expression '{}' cannot be matched in a text of {} bytes: {}", code_->pattern,
               text.size(), error_text(rc));
  if (!match) return true;
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(code_->data);
  *match = {range[0], range[1], {}};
  for (uint32_t g = 1; g < pcre2_get_ovector_count(code_->data); ++g) {
    const bool is_set = static_cast<int>(g) < rc && range[2 * g] != PCRE2_UNSET;
    match->groups.emplace_back(is_set ? text.substr(range[2 * g], range[2 * g + 1] - range[2 * g]) : "");
  }
  return true;
}

std::string PythonRegex::replace(std::string_view text, std::string_view replacement) const {
  std::string out;
  size_t done = 0;
  for (const RegexMatch& match : find_all(text)) {
    out += text.substr(done, match.begin - done);
    for (size_t i = 0; i < replacement.size(); ++i) {
      const bool escapes = replacement[i] == '\\' && i + 1 < replacement.size();
      const char next = escapes ? replacement[i + 1] : '\0';
      if (escapes && next >= '1' && next <= '9') {
        const auto group = static_cast<size_t>(next - '1');
        if (group < match.groups.size()) out += match.groups[group];
        ++i;
      } else if (escapes && (next == 'n' || next == '\\')) {
        out += next == 'n' ? '\n' : '\\';
        ++i;
      } else {
        out += replacement[i];
      }
    }
    done = match.end;
  }
  return out += text.substr(done);
}

std::vector<std::string> PythonRegex::split(std::string_view text) const {
  std::vector<std::string> pieces;
  size_t done = 0;
  for (const RegexMatch& match : find_all(text)) {
    pieces.emplace_back(text.substr(done, match.begin - done));
    done = match.end;
  }
  pieces.emplace_back(text.substr(done));
  return pieces;
}

}  // namespace sinter::eval
