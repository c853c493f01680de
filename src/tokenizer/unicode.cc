#include "tokenizer/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace sinter::tokenizer {
namespace {

bool is_white_space(uint32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
         c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

// Below U+0300 every character is its own NFC and composes with nothing before it. Of the others, those that are no
// marks, no conjoining jamo and have no canonical decomposition are inert too.
bool may_compose(uint32_t code) {
  if (code < 0x300) return false;
  if ((code >= 0x1100 && code <= 0x11ff) || (code >= 0xa960 && code <= 0xa97f) || (code >= 0xd7b0 && code <= 0xd7ff))
    return true;
  const utf8proc_property_t* property = utf8proc_get_property(static_cast<utf8proc_int32_t>(code));
  return property->combining_class != 0 || (property->decomp_seqindex != UINT16_MAX && property->decomp_type == 0);
}

uint8_t class_of(uint32_t code) {
  uint8_t flags = is_white_space(code) ? kSpace : 0;
  if (may_compose(code)) flags |= kComposes;
  if (code == '\r' || code == '\n') flags |= kNewline;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return flags | kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return flags | kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return flags | kLetter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return flags | kNumber;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return flags | kMark | (code >= 0x300 ? kComposes : 0);
    default:
      return flags;
  }
}

struct Alphabet {
  std::array<uint32_t, 256> of_byte{};
  std::array<int16_t, 512> to_byte{};
  Alphabet() {
    to_byte.fill(-1);
    uint32_t next = 256;
    for (uint32_t b = 0; b < 256; ++b) {
      bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
      of_byte[b] = printable ? b : next++;
      to_byte[of_byte[b]] = static_cast<int16_t>(b);
    }
  }
};
const Alphabet& alphabet() {
  static const Alphabet instance;
  return instance;
}

// Calls valid(run) on the longest well-formed stretches and copies the bytes between them.
template <class F>
std::string map_valid_runs(std::string_view text, F&& valid) {
  std::string out;
  out.reserve(text.size() + 8);
  size_t run = 0;
  for (size_t pos = 0; pos <= text.size();) {
    bool bad = pos == text.size();
    Char c{kBadByte, 1};
    if (!bad) {
      c = decode_char(text, pos);
      bad = c.code == kBadByte;
    }
    if (bad) {
      if (run < pos) valid(text.substr(run, pos - run), out);
      if (pos < text.size()) out += text[pos];
      run = pos + 1;
    }
    pos += c.length;
  }
  return out;
}

bool is_ascii(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080ull) return false;
  }
  for (; i < text.size(); ++i) {
    if (text[i] & 0x80) return false;
  }
  return true;
}

// utf8proc_map, but for the order of combining marks: the library sorts each run of them by exchanging neighbours,
// which is quadratic in its length.
void append_mapped(std::string_view run, int options, std::string& out) {
  const auto flags = static_cast<utf8proc_option_t>(options);
  auto check = [&](utf8proc_ssize_t n) {
    SINTER_CHECK(n >= 0, "cannot normalize {} bytes of text: {}", run.size(), utf8proc_errmsg(n));
    return static_cast<size_t>(n);
  };
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(run.size() + 32);
  for (size_t pos = 0; pos < run.size();) {
    utf8proc_int32_t code = 0, parts[32];
    pos += check(utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(run.data() + pos),
                                  static_cast<utf8proc_ssize_t>(run.size() - pos), &code));
    int boundary = 0;
    const size_t count = check(utf8proc_decompose_char(code, parts, 32, flags, &boundary));
    codes.insert(codes.end(), parts, parts + std::min<size_t>(count, 32));
  }
  auto rank = [](utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; };
  for (auto begin = codes.begin(); begin != codes.end();) {
    auto end = std::find_if(begin, codes.end(), [&](auto code) { return rank(code) == 0; });
    std::stable_sort(begin, end, [&](auto a, auto b) { return rank(a) < rank(b); });
    begin = end == codes.end() ? end : end + 1;
  }
  const auto count = static_cast<utf8proc_ssize_t>(codes.size());
  codes.resize(codes.size() + 1);  // the library writes UTF-8 in place, and a 0 behind it
  const size_t bytes = check(utf8proc_reencode(codes.data(), count, flags));
  out.append(reinterpret_cast<const char*>(codes.data()), bytes);
}

// NFC. Nearly all text is in it already: only a character that may compose, with the one before it and what follows up
// to the next inert one, goes through the library.
std::string compose(std::string_view text) {
  const CharClasses classes;
  std::string out;
  out.reserve(text.size());
  size_t copied = 0, previous = 0;  // text before `copied` is out; `previous` is where the last inert character starts
  for (size_t pos = 0; pos < text.size();) {
    if (!(text[pos] & 0x80)) {
      previous = pos++;
      continue;
    }
    Char c = decode_char(text, pos);
    if (c.code == kBadByte) {
      previous = pos += c.length;  // nothing composes with a stray byte
      continue;
    }
    if (!(classes(c.code) & kComposes)) {
      previous = pos;
      pos += c.length;
      continue;
    }
    size_t end = pos;
    while (end < text.size() && (c = decode_char(text, end)).code != kBadByte && (classes(c.code) & kComposes))
      end += c.length;
    out.append(text, copied, previous - copied);
    append_mapped(text.substr(previous, end - previous), UTF8PROC_STABLE | UTF8PROC_COMPOSE, out);
    copied = previous = pos = end;
  }
  return out.append(text, copied);
}

}  // namespace

size_t ill_formed_bytes(std::string_view text, size_t pos) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned lead = byte(pos), second = byte(pos + 1);
  if (lead < 0xe0 || lead > 0xf4) return 1;
  const unsigned least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (second < least || second > most) return 1;
  const bool has_third = lead >= 0xf0 && byte(pos + 2) >= 0x80 && byte(pos + 2) <= 0xbf;
  return has_third ? 3 : 2;
}

namespace detail {

// Most of the code space is a few pages that repeat (unassigned, ideographs, Hangul): store each distinct page once.
ClassTable::ClassTable() {
  int num_pages = 0;
  for (uint32_t page = 0; page < std::size(page_of); ++page) {
    uint8_t classes[256];
    for (uint32_t i = 0; i < 256; ++i) classes[i] = class_of(page << 8 | i);
    int found = 0;
    while (found < num_pages && std::memcmp(pages[found], classes, 256) != 0) ++found;
    if (found == num_pages) {
      SINTER_CHECK(num_pages < 256, "the Unicode tables of utf8proc have more distinct pages than expected (256)");
      std::memcpy(pages[num_pages++], classes, 256);
    }
    page_of[page] = static_cast<uint8_t>(found);
  }
}

const ClassTable& class_table() {
  static const ClassTable instance;
  return instance;
}

}  // namespace detail

Char decode_char(std::string_view text, size_t pos) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + pos;
  const size_t left = text.size() - pos;
  auto follows = [&](size_t i) { return i < left && (p[i] & 0xc0) == 0x80; };
  const uint32_t b = p[0];
  if (b < 0x80) return {b, 1};
  if (b >= 0xc2 && b < 0xe0) {
    if (follows(1)) return {(b & 0x1f) << 6 | (p[1] & 0x3fu), 2};
  } else if (b >= 0xe0 && b < 0xf0) {
    if (follows(1) && follows(2)) {
      uint32_t code = (b & 0xf) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
      if (code >= 0x800 && (code < 0xd800 || code > 0xdfff)) return {code, 3};
    }
  } else if (b >= 0xf0 && b < 0xf5) {
    if (follows(1) && follows(2) && follows(3)) {
      uint32_t code = (b & 7) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
      if (code >= 0x10000 && code <= 0x10ffff) return {code, 4};
    }
  }
  return {kBadByte, 1};
}

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 0x3f));
    out += static_cast<char>(0x80 | (code >> 6 & 0x3f));
    out += static_cast<char>(0x80 | (code & 0x3f));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t pos = 0; pos < text.size();) {
    Char c = decode_char(text, pos);
    if (c.code == kBadByte) return false;
    pos += c.length;
  }
  return true;
}

size_t incomplete_tail(std::string_view text) {
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const auto b = static_cast<unsigned char>(text[text.size() - back]);
    if ((b & 0xc0) == 0x80) continue;  // a continuation byte: the lead is further back
    size_t length = b >= 0xf0 && b < 0xf5 ? 4 : b >= 0xe0 && b < 0xf0 ? 3 : b >= 0xc2 && b < 0xe0 ? 2 : 1;
    if (length <= back) return 0;
    // A second byte that can never follow this lead (overlong, surrogate, beyond 10FFFF) will not become a character.
    if (back >= 2) {
      const auto second = static_cast<unsigned char>(text[text.size() - back + 1]);
      if ((b == 0xe0 && second < 0xa0) || (b == 0xed && second > 0x9f) || (b == 0xf0 && second < 0x90) ||
          (b == 0xf4 && second > 0x8f)) {
        return 0;
      }
    }
    return back;
  }
  return 0;
}

std::string normalize_unicode(std::string_view text, NormalForm form) {
  if (is_ascii(text)) return std::string(text);
  if (form == NormalForm::nfc) return compose(text);
  int options = UTF8PROC_STABLE;
  options |= form == NormalForm::nfkc ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
  if (form != NormalForm::nfd) options |= UTF8PROC_COMPAT;
  return map_valid_runs(text, [&](std::string_view run, std::string& out) { append_mapped(run, options, out); });
}

std::string lowercase_unicode(std::string_view text) {
  return map_valid_runs(text, [](std::string_view run, std::string& out) {
    for (size_t pos = 0; pos < run.size();) {
      Char c = decode_char(run, pos);
      if (c.code == 0x130) {  // the one character whose lower case is two
        out += "i\u0307";
      } else {
        append_utf8(out, static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.code))));
      }
      pos += c.length;
    }
  });
}

std::string strip_nonspacing_marks(std::string_view text) {
  return map_valid_runs(text, [](std::string_view run, std::string& out) {
    for (size_t pos = 0; pos < run.size();) {
      Char c = decode_char(run, pos);
      if (utf8proc_category(static_cast<utf8proc_int32_t>(c.code)) != UTF8PROC_CATEGORY_MN)
        out += run.substr(pos, c.length);
      pos += c.length;
    }
  });
}

uint32_t byte_to_alphabet(uint8_t byte) { return alphabet().of_byte[byte]; }

int alphabet_to_byte(uint32_t code) { return code < 512 ? alphabet().to_byte[code] : -1; }

bool alphabet_to_bytes(std::string_view token, std::string& bytes) {
  bytes.clear();
  for (size_t pos = 0; pos < token.size();) {
    Char c = decode_char(token, pos);
    int byte = alphabet_to_byte(c.code);
    if (byte < 0) return false;
    bytes += static_cast<char>(byte);
    pos += c.length;
  }
  return true;
}

std::string bytes_to_alphabet(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size() * 2);
  for (unsigned char b : bytes) append_utf8(out, byte_to_alphabet(b));
  return out;
}

}  // namespace sinter::tokenizer
