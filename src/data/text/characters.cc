#include "data/text/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <initializer_list>
#include <map>

#include "tokenizer/unicode.h"

namespace sinter::data {
namespace {

constexpr uint32_t kPunctuationList[] = {171,   180,   187,   8211,  8212,  8217,  8220,  8221,  8222,
                                         8230,  8758,  9473,  9658,  12289, 12290, 12296, 12297, 12298,
                                         12299, 12300, 12301, 12304, 12305, 65281, 65285, 65288, 65289,
                                         65292, 65294, 65297, 65306, 65307, 65311, 65374};
constexpr uint32_t kTerminalList[] = {
    33,    46,    63,    1417,  1565,  1566,  1567,  1748,  1792,  1793,  1794,  2041,  2103,  2105,   2109,  2110,
    2404,  2405,  4170,  4171,  4962,  4967,  4968,  5742,  5941,  5942,  6100,  6101,  6102,  6105,   6106,  6147,
    6153,  6468,  6469,  6824,  6825,  6826,  6827,  7002,  7003,  7006,  7007,  7037,  7038,  7227,   7228,  7294,
    7295,  8252,  8253,  8263,  8264,  8265,  11822, 11836, 11859, 11860, 12290, 42239, 42510, 42511,  42739, 42743,
    43126, 43127, 43214, 43215, 43311, 43464, 43465, 43613, 43614, 43615, 43760, 43761, 44011, 65106,  65110, 65111,
    65281, 65294, 65311, 65377, 68182, 68183, 69461, 69462, 69463, 69464, 69465, 69510, 69511, 69512,  69513, 69703,
    69704, 69822, 69823, 69824, 69825, 69953, 69954, 69955, 70085, 70086, 70093, 70110, 70111, 70200,  70201, 70203,
    70204, 70313, 70731, 70732, 71106, 71107, 71113, 71114, 71115, 71116, 71117, 71118, 71119, 71120,  71121, 71122,
    71123, 71124, 71125, 71126, 71127, 71233, 71234, 71484, 71485, 71486, 72004, 72006, 72258, 72259,  72347, 72348,
    72769, 72770, 73463, 73464, 73539, 73540, 92782, 92783, 92917, 92983, 92984, 92996, 93848, 113823, 121480};
constexpr uint32_t kWhiteList[] = {9,    10,   11,   12,   13,   32,   133,  160,  5760, 8192, 8193, 8194, 8195,
                                   8196, 8197, 8198, 8199, 8200, 8201, 8202, 8232, 8233, 8239, 8287, 12288};

bool is_han(uint32_t c) {
  return (c >= 0x3400 && c <= 0x4dbf) || (c >= 0x4e00 && c <= 0x9fff) || (c >= 0xf900 && c <= 0xfaff) ||
         (c >= 0x20000 && c <= 0x3ffff);
}

uint32_t category_flags(uint32_t code) {
  const uint32_t word = is_han(code) ? 0u : uint32_t{kWordChar};
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
      return word | kLetterChar | kUpperLetter | kCased;
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return word | kLetterChar | kCased;
    case UTF8PROC_CATEGORY_LM:
      return word | kLetterChar | kCaseIgnorable;
    case UTF8PROC_CATEGORY_LO:
      return word | kLetterChar;
    case UTF8PROC_CATEGORY_ND:
      return word | kDecimal | kNumberChar;
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return word | kNumberChar;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
      return word | kMarkChar | kCaseIgnorable;
    case UTF8PROC_CATEGORY_MC:
      return word | kMarkChar;
    case UTF8PROC_CATEGORY_CF:
      return kFormat | kCaseIgnorable;
    case UTF8PROC_CATEGORY_SK:
      return kCaseIgnorable;
    default:
      return 0;
  }
}

// Flags of single characters, on top of what their category gives.
std::map<uint32_t, uint32_t> listed_flags() {
  std::map<uint32_t, uint32_t> flags;
  auto add = [&](uint32_t code, uint32_t flag) { flags[code] |= flag; };
  for (uint32_t c = 0; c < 160; ++c) {
    const bool is_punctuation = (c < 32 && c != 9 && c != 10) || (c >= 33 && c <= 47) || (c >= 58 && c <= 64) ||
                                (c >= 91 && c <= 96) || c >= 123;
    if (is_punctuation) add(c, kPunctuation);
  }
  for (uint32_t c : kPunctuationList) add(c, kPunctuation);
  for (uint32_t c : kTerminalList) add(c, kTerminal);
  for (uint32_t c : kWhiteList) add(c, kWhite | kPythonSpace);
  for (uint32_t c : {28u, 29u, 30u, 31u}) add(c, kPythonSpace);
  for (uint32_t c : {10u, 11u, 12u, 13u, 28u, 29u, 30u, 133u, 8232u, 8233u}) add(c, kLineBreak);
  for (uint32_t c : {34u, 39u, 41u, 93u, 125u, 187u, 8217u, 8221u}) add(c, kCloser);
  for (uint32_t c : {34u, 39u, 40u, 91u, 123u, 171u, 8216u, 8220u}) add(c, kOpener);
  for (uint32_t c : {0x27u, 0x2019u, 0x2du, 0x2010u, 0x2011u, 0x2eu, 0x5fu}) add(c, kJoiner);
  for (uint32_t c : {12290u, 65281u, 65294u, 65311u, 65377u}) add(c, kHardTerminal);
  for (uint32_t c : {0x27u, 0x2eu, 0x3au, 0xb7u, 0x387u, 0x55fu, 0x5f4u, 0x2018u, 0x2019u, 0x2024u, 0x2027u, 0xfe13u,
                     0xfe52u, 0xfe55u, 0xff07u, 0xff0eu, 0xff1au})
    add(c, kCaseIgnorable);
  return flags;
}

constexpr uint32_t kCapitalSigma = 0x3a3, kFinalSigma = 0x3c2, kDottedI = 0x130;

// Whether the sigma before `after` ends a word: a cased letter before it, none behind it, case-ignorable ones skipped.
bool is_final_sigma(std::string_view text, size_t sigma, size_t after) {
  const CharFlags flags;
  size_t pos = sigma;
  bool has_before = false;
  while (pos > 0) {
    const uint32_t f = flags(previous_char(text, pos));
    if (f & kCaseIgnorable) continue;
    has_before = (f & kCased) != 0;
    break;
  }
  if (!has_before) return false;
  for (pos = after; pos < text.size();) {
    const uint32_t f = flags(next_char(text, pos));
    if (f & kCaseIgnorable) continue;
    return (f & kCased) == 0;
  }
  return true;
}

}  // namespace

namespace detail {

CharTable::CharTable() {
  const std::map<uint32_t, uint32_t> listed = listed_flags();
  std::map<std::vector<uint32_t>, uint16_t> known;
  std::vector<uint32_t> page(256);
  auto next = listed.begin();
  for (uint32_t p = 0; p < 0x1100; ++p) {
    for (uint32_t i = 0; i < 256; ++i) {
      const uint32_t code = p << 8 | i;
      page[i] = category_flags(code) | (is_han(code) ? static_cast<uint32_t>(kHan) : 0u);
      for (; next != listed.end() && next->first == code; ++next) page[i] |= next->second;
    }
    const auto [at, is_new] = known.emplace(page, static_cast<uint16_t>(known.size()));
    if (is_new) pages.insert(pages.end(), page.begin(), page.end());
    page_of[p] = at->second;
  }
  std::copy_n(pages.begin(), 128, ascii);
}

const CharTable& char_table() {
  static const CharTable table;
  return table;
}

}  // namespace detail

uint32_t previous_char(std::string_view text, size_t& pos) {
  do {
    --pos;
  } while (pos > 0 && (static_cast<unsigned char>(text[pos]) & 0xc0) == 0x80);
  size_t end = pos;
  return next_char(text, end);
}

int64_t count_chars(std::string_view text) {
  int64_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

bool is_ascii(std::string_view text) {
  unsigned char any = 0;
  for (char c : text) any |= static_cast<unsigned char>(c);
  return any < 128;
}

std::string to_valid_utf8(std::string_view bytes) {
  if (tokenizer::is_valid_utf8(bytes)) return std::string(bytes);
  std::string out;
  out.reserve(bytes.size());
  for (size_t pos = 0; pos < bytes.size();) {
    const tokenizer::Char c = tokenizer::decode_char(bytes, pos);
    if (c.code == tokenizer::kBadByte) {
      out += "\xef\xbf\xbd";
      pos += tokenizer::ill_formed_bytes(bytes, pos);
    } else {
      out.append(bytes.substr(pos, c.length));
      pos += c.length;
    }
  }
  return out;
}

std::string_view strip_left(std::string_view text) {
  const CharFlags flags;
  size_t begin = 0;
  while (begin < text.size()) {
    size_t next = begin;
    if (!(flags(next_char(text, next)) & kPythonSpace)) break;
    begin = next;
  }
  return text.substr(begin);
}

std::string_view strip_right(std::string_view text) {
  const CharFlags flags;
  size_t end = text.size();
  while (end > 0) {
    size_t before = end;
    if (!(flags(previous_char(text, before)) & kPythonSpace)) break;
    end = before;
  }
  return text.substr(0, end);
}

std::string_view strip(std::string_view text) { return strip_right(strip_left(text)); }

std::vector<std::string_view> split_lines(std::string_view text) {
  const CharFlags flags;
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const auto byte = static_cast<unsigned char>(text[pos]);
    if (byte >= 32 && byte < 128) {  // most of the text
      ++pos;
      continue;
    }
    if (!(flags(next_char(text, pos)) & kLineBreak)) continue;
    lines.push_back(text.substr(begin, at - begin));
    if (byte == '\r' && pos < text.size() && text[pos] == '\n') ++pos;
    begin = pos;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split_space(std::string_view text) {
  const CharFlags flags;
  std::vector<std::string_view> words;
  size_t begin = std::string_view::npos;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    if (flags(next_char(text, pos)) & kPythonSpace) {
      if (begin != std::string_view::npos) words.push_back(text.substr(begin, at - begin));
      begin = std::string_view::npos;
    } else if (begin == std::string_view::npos) {
      begin = at;
    }
  }
  if (begin != std::string_view::npos) words.push_back(text.substr(begin));
  return words;
}

std::string lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const auto byte = static_cast<unsigned char>(text[pos]);
    if (byte < 128) {
      out.push_back(static_cast<char>(byte >= 'A' && byte <= 'Z' ? byte + 32 : byte));
      ++pos;
      continue;
    }
    const uint32_t code = next_char(text, pos);
    if (code == kCapitalSigma) {
      tokenizer::append_utf8(out, is_final_sigma(text, at, pos) ? kFinalSigma : 0x3c3);
    } else if (code == kDottedI) {
      out += "i\xcc\x87";
    } else {
      const auto low = static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
      if (low == code) {
        out.append(text.substr(at, pos - at));
      } else {
        tokenizer::append_utf8(out, low);
      }
    }
  }
  return out;
}

}  // namespace sinter::data
