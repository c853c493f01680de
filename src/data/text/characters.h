// Character classes of the data pipeline, and the few string functions whose exact meaning decides a filter's verdict.
//
// Text here is valid UTF-8 (readers replace what is not); positions are bytes, lengths of words and lines are counted
// in code points where a rule says "characters". strip, splitlines and lower follow Python, which the reference filters
// are written in; "white space" without a name is the Unicode property White_Space.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

enum CharFlag : uint32_t {
  kWordChar = 1 << 0,     // L*, M*, N*, but not Han
  kHan = 1 << 1,          // U+3400-4DBF, 4E00-9FFF, F900-FAFF, 20000-3FFFF
  kMarkChar = 1 << 2,     // M*
  kFormat = 1 << 3,       // Cf
  kDecimal = 1 << 4,      // Nd
  kLetterChar = 1 << 5,   // L*
  kUpperLetter = 1 << 6,  // Lu
  kWhite = 1 << 7,        // White_Space
  kPythonSpace = 1 << 8,  // White_Space and U+001C-1F
  kLineBreak = 1 << 9,    // where splitlines() breaks
  kPunctuation = 1 << 10,
  kTerminal = 1 << 11,  // terminal punctuation: . ! ? and their like in other scripts
  kCloser = 1 << 12,    // " ' ) ] } and the like, after a terminal
  kOpener = 1 << 13,
  kJoiner = 1 << 14,         // ' - . _ and the like: inside a word between two word characters
  kNumberChar = 1 << 15,     // N*
  kHardTerminal = 1 << 16,   // ends a sentence without white space behind it
  kCased = 1 << 17,          // Lu, Ll, Lt
  kCaseIgnorable = 1 << 18,  // between a letter and a final sigma
};

namespace detail {
struct CharTable {
  CharTable();
  uint16_t page_of[0x110000 >> 8];
  std::vector<uint32_t> pages;  // 256 entries each
  uint32_t ascii[128];
};
const CharTable& char_table();
}  // namespace detail

// Looks flags up; make one per scan.
class CharFlags {
 public:
  CharFlags() : table_(detail::char_table()) {}
  uint32_t operator()(uint32_t code) const {
    if (code < 128) return table_.ascii[code];
    if (code > 0x10ffff) return 0;
    return table_.pages[static_cast<size_t>(table_.page_of[code >> 8]) << 8 | (code & 255)];
  }
  uint32_t ascii(unsigned char c) const { return table_.ascii[c]; }

 private:
  const detail::CharTable& table_;
};

// The code point at text[pos] of valid UTF-8; advances pos behind it.
inline uint32_t next_char(std::string_view text, size_t& pos) {
  const auto* s = reinterpret_cast<const unsigned char*>(text.data()) + pos;
  const size_t left = text.size() - pos;
  if (s[0] < 0x80) return ++pos, s[0];
  if (s[0] < 0xe0 && left >= 2) return pos += 2, (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
  if (s[0] < 0xf0 && left >= 3) return pos += 3, (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
  if (left >= 4) return pos += 4, (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
  return pos = text.size(), 0xfffd;
}
// The code point that ends at text[pos]; moves pos to its first byte. pos > 0.
uint32_t previous_char(std::string_view text, size_t& pos);
int64_t count_chars(std::string_view text);

// Text with every ill-formed byte sequence replaced by U+FFFD; well-formed text comes back unchanged.
std::string to_valid_utf8(std::string_view bytes);

// Python's str.strip(), lstrip(), rstrip() without arguments.
std::string_view strip(std::string_view text);
std::string_view strip_left(std::string_view text);
std::string_view strip_right(std::string_view text);
// Python's str.splitlines(): \r\n is one break, no empty line at the end.
std::vector<std::string_view> split_lines(std::string_view text);
// Python's str.split().
std::vector<std::string_view> split_space(std::string_view text);
// Python's str.lower(): the full mapping, final sigma included.
std::string lower(std::string_view text);
bool is_ascii(std::string_view text);

}  // namespace sinter::data
