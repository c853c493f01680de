#include "eval/language/letter_case.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

constexpr uint32_t kCapitalSigma = 0x3a3;

struct Range {
  uint32_t first, last;
};

// Unicode's Other_Lowercase and Other_Uppercase: signs of a case that are not of the category Ll or Lu.
constexpr std::array kOtherLower = std::to_array<Range>(
    {{0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
     {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
     {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
     {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
     {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}});
constexpr std::array kOtherUpper = std::to_array<Range>(
    {{0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}});

bool is_in(const auto& ranges, uint32_t code) {
  return std::ranges::any_of(ranges, [&](const Range& r) { return r.first <= code && code <= r.last; });
}

bool is_upper_sign(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LU || is_in(kOtherUpper, code);
}

bool is_lower_sign(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LL || is_in(kOtherLower, code);
}

bool is_title_sign(uint32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LT;
}

// Unicode's Case_Ignorable: what may stand between a sigma and the letters of its word.
bool is_case_ignorable(uint32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return std::u32string_view(
                 U"'.:\u00b7\u0387\u055f\u05f4\u2018\u2019\u2024\u2027\ufe13\ufe52\ufe55\uff07\uff0e\uff1a")
                 .find(code) != std::u32string_view::npos;
  }
}

bool is_cased(uint32_t code) { return is_upper_sign(code) || is_lower_sign(code) || is_title_sign(code); }

struct Cases {
  bool upper = false, lower = false, title = false;  // has a letter of it
};

Cases find_cases(std::string_view text) {
  Cases found;
  for (size_t at = 0; at < text.size();) {
    const tokenizer::Char c = tokenizer::decode_char(text, at);
    at += c.length;
    if (c.code == tokenizer::kBadByte) continue;
    found.upper = found.upper || is_upper_sign(c.code);
    found.lower = found.lower || is_lower_sign(c.code);
    found.title = found.title || is_title_sign(c.code);
  }
  return found;
}

// Whether the first sign from `at` on, or the last one before it, that is not case-ignorable has a case.
bool has_cased_next(const std::vector<uint32_t>& codes, size_t at) {
  while (at < codes.size() && is_case_ignorable(codes[at])) ++at;
  return at < codes.size() && is_cased(codes[at]);
}

bool has_cased_before(const std::vector<uint32_t>& codes, size_t at) {
  while (at > 0 && is_case_ignorable(codes[at - 1])) --at;
  return at > 0 && is_cased(codes[at - 1]);
}

}  // namespace

std::string to_lower(std::string_view text) {
  constexpr std::string_view kSigma = "σ", kFinalSigma = "ς";
  std::string out = tokenizer::lowercase_unicode(text);
  if (text.find("Σ") == std::string_view::npos) return out;
  std::vector<uint32_t> codes;
  for (size_t at = 0; at < text.size(); at += tokenizer::decode_char(text, at).length) {
    codes.push_back(tokenizer::decode_char(text, at).code);
  }
  out.clear();
  for (size_t at = 0, i = 0; i < codes.size(); ++i) {
    const size_t length = tokenizer::decode_char(text, at).length;
    if (codes[i] == kCapitalSigma) {
      out += has_cased_before(codes, i) && !has_cased_next(codes, i + 1) ? kFinalSigma : kSigma;
    } else {
      out += tokenizer::lowercase_unicode(text.substr(at, length));
    }
    at += length;
  }
  return out;
}

bool is_upper(std::string_view text) {
  const Cases found = find_cases(text);
  return found.upper && !found.lower && !found.title;
}

bool is_lower(std::string_view text) {
  const Cases found = find_cases(text);
  return found.lower && !found.upper && !found.title;
}

}  // namespace sinter::eval
