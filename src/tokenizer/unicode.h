// Characters and their classes, as the pre-tokenizers need them.
//
// Text is bytes. A byte that is not part of a well-formed UTF-8 sequence counts as a character of its own, of no class,
// so that every byte string can be split, encoded and given back.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace sinter::tokenizer {

enum CharClass : uint8_t {
  kLetter = 1,      // \p{L}
  kNumber = 2,      // \p{N}
  kSpace = 4,       // \s: the White_Space property
  kMark = 8,        // \p{M}
  kUpper = 16,      // \p{Lu} or \p{Lt}
  kLower = 32,      // \p{Ll}
  kNewline = 64,    // \r or \n
  kComposes = 128,  // may change, or change its neighbours, under NFC: marks, conjoining jamo, what decomposes
};

struct Char {
  uint32_t code;    // the code point, or kBadByte
  uint32_t length;  // bytes it takes, at least 1
};
inline constexpr uint32_t kBadByte = 0xffffffff;

// The character at text[pos]; pos < text.size().
Char decode_char(std::string_view text, size_t pos);
// Where decode_char finds a bad byte: the bytes from there that one U+FFFD stands for, which are as much of a character
// as is well-formed (Unicode's "maximal subpart", as Python and Rust have it).
size_t ill_formed_bytes(std::string_view text, size_t pos);
// Appends the UTF-8 form of a code point (at most 0x10FFFF).
void append_utf8(std::string& out, uint32_t code);
bool is_valid_utf8(std::string_view text);
// How many bytes at the end of `text` may be the beginning of a character that is not complete yet (0..3).
size_t incomplete_tail(std::string_view text);

namespace detail {
struct ClassTable {
  ClassTable();
  uint8_t page_of[0x110000 >> 8];
  uint8_t pages[256][256];
};
const ClassTable& class_table();
}  // namespace detail

// Looks classes up; make one per scan, it keeps the table's address.
class CharClasses {
 public:
  CharClasses() : table_(detail::class_table()) {}
  uint8_t operator()(uint32_t code) const {
    if (code > 0x10ffff) return 0;
    return table_.pages[table_.page_of[code >> 8]][code & 255];
  }

 private:
  const detail::ClassTable& table_;
};

enum class NormalForm { nfc, nfd, nfkc, nfkd };
// The text in a Unicode normal form; bytes that are not UTF-8 stay as they are.
std::string normalize_unicode(std::string_view text, NormalForm form);
// Simple lower-casing, character by character.
std::string lowercase_unicode(std::string_view text);
// Without characters of the category Mn (after NFD this removes accents).
std::string strip_nonspacing_marks(std::string_view text);

// GPT-2's printable alphabet for bytes: the code point that stands for a byte in byte-level token strings.
uint32_t byte_to_alphabet(uint8_t byte);
// The byte a code point stands for, or -1.
int alphabet_to_byte(uint32_t code);
// A byte-level token string as the bytes it stands for; false when some character is not in the alphabet.
bool alphabet_to_bytes(std::string_view token, std::string& bytes);
std::string bytes_to_alphabet(std::string_view bytes);

}  // namespace sinter::tokenizer
