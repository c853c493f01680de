#include "tokenizer/split_pattern.h"

#include <array>
#include <bit>
#include <cstring>

#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

// Classes of ASCII; the rest is in the Unicode table.
constexpr auto kAscii = [] {
  std::array<uint8_t, 128> classes{};
  for (int b = 0; b < 128; ++b) {
    uint8_t flags = 0;
    if (b >= 'A' && b <= 'Z') flags |= kLetter | kUpper;
    if (b >= 'a' && b <= 'z') flags |= kLetter | kLower;
    if (b >= '0' && b <= '9') flags |= kNumber;
    if ((b >= 9 && b <= 13) || b == ' ') flags |= kSpace;
    if (b == '\r' || b == '\n') flags |= kNewline;
    classes[static_cast<size_t>(b)] = flags;
  }
  return classes;
}();

// How many of the eight bytes at p are ASCII letters before the first that is not (8 when all are): eight at a time,
// because a loop over bytes pays a mispredicted branch at the end of nearly every word.
size_t letters_of_eight(const char* p) {
  static_assert(std::endian::native == std::endian::little);
  constexpr uint64_t kHigh = 0x8080808080808080ull, kOnes = 0x0101010101010101ull;
  uint64_t bytes;
  std::memcpy(&bytes, p, 8);
  const uint64_t lower = (bytes | kOnes * 0x20) & ~kHigh;
  const uint64_t from_a = lower + kOnes * (0x80 - 'a'), after_z = lower + kOnes * (0x80 - 'z' - 1);
  const uint64_t others = (~(from_a & ~after_z) | bytes) & kHigh;
  return others == 0 ? 8 : static_cast<size_t>(std::countr_zero(others)) / 8;
}

struct ClassedChar {
  uint8_t flags;
  uint8_t length;  // 0 at the end of the text
};

// A cursor's view of the text: classes by position.
class Scan {
 public:
  explicit Scan(std::string_view text) : text_(text) {}
  size_t size() const { return text_.size(); }
  unsigned char byte(size_t pos) const { return pos < text_.size() ? static_cast<unsigned char>(text_[pos]) : 0; }

  ClassedChar at(size_t pos) const {
    if (pos >= text_.size()) return {0, 0};
    const auto b = static_cast<unsigned char>(text_[pos]);
    if (b < 0x80) return {kAscii[b], 1};
    Char c = decode_char(text_, pos);
    return {CharClasses()(c.code), static_cast<uint8_t>(c.length)};
  }

  // The end of the longest run from pos whose characters have one of the classes `any` and none of `none`.
  // With `any` 0, every character without the classes `none` counts.
  template <uint8_t any, uint8_t none>
  size_t run_end(size_t pos) const {
    for (;;) {
      ClassedChar c = at(pos);
      if (c.length == 0 || (any != 0 && !(c.flags & any)) || (c.flags & none)) return pos;
      pos += c.length;
    }
  }
  size_t letters_end(size_t pos) const {
    while (pos + 8 <= text_.size()) {
      const size_t letters = letters_of_eight(text_.data() + pos);
      pos += letters;
      if (letters == 8) continue;
      if (static_cast<unsigned char>(text_[pos]) < 0x80) return pos;
      break;
    }
    return run_end<kLetter, 0>(pos);
  }
  size_t symbols_end(size_t pos) const { return run_end<0, kSpace | kLetter | kNumber>(pos); }

  size_t numbers_end(size_t pos, int most) const {
    for (; most > 0; --most) {
      ClassedChar c = at(pos);
      if (!(c.flags & kNumber)) break;
      pos += c.length;
    }
    return pos;
  }

  size_t newlines_end(size_t pos, bool or_slash = false) const {
    while (byte(pos) == '\n' || byte(pos) == '\r' || (or_slash && byte(pos) == '/')) ++pos;
    return pos;
  }

  // The bytes of 's 't 're 've 'm 'll 'd at pos (which holds the apostrophe), or 0. Without case also 'ſ (long s).
  size_t contraction(size_t pos, bool any_case) const {
    auto lower = [&](size_t i) {
      unsigned char b = byte(i);
      return any_case && b >= 'A' && b <= 'Z' ? static_cast<unsigned char>(b + 32) : b;
    };
    switch (lower(pos + 1)) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return 2;
      case 'r':
      case 'v':
        return lower(pos + 2) == 'e' ? 3 : 0;
      case 'l':
        return lower(pos + 2) == 'l' ? 3 : 0;
      case 0xc5:
        return any_case && byte(pos + 2) == 0xbf ? 3 : 0;
      default:
        return 0;
    }
  }

  // White space from pos by the alternatives \s*[\r\n]+ (when `lines`), \s+(?!\S), \s+.
  template <bool lines, bool whole_at_end>
  size_t spaces_end(size_t pos) const {
    size_t end = pos, last = pos, after_newline = 0;
    for (;;) {
      ClassedChar c = at(end);
      if (!(c.flags & kSpace)) break;
      last = end;
      end += c.length;
      if (c.flags & kNewline) after_newline = end;
    }
    if (whole_at_end && end == size()) return end;
    if (lines && after_newline) return after_newline;
    return end == size() || last == pos ? end : last;
  }

 private:
  std::string_view text_;
};

size_t gpt2_end(std::string_view text, size_t pos) {
  const Scan scan(text);
  const unsigned char first = scan.byte(pos);
  if (first == '\'') {
    if (size_t n = scan.contraction(pos, false)) return pos + n;
  }
  const size_t start = pos + (first == ' ');
  const ClassedChar c = scan.at(start);
  if (c.length == 0 || (c.flags & kSpace)) return scan.spaces_end<false, false>(pos);
  if (c.flags & kLetter) return scan.letters_end(start + c.length);
  if (c.flags & kNumber) return scan.run_end<kNumber, 0>(start + c.length);
  return scan.symbols_end(start + c.length);
}

template <int max_digits, bool whole_at_end>
size_t llama3_end(std::string_view text, size_t pos) {
  const Scan scan(text);
  const unsigned char first = scan.byte(pos);
  if (first == '\'') {
    if (size_t n = scan.contraction(pos, true)) return pos + n;
  }
  const ClassedChar c = scan.at(pos);
  if (c.flags & kLetter) return scan.letters_end(pos + c.length);
  if (c.flags & kNumber) return scan.numbers_end(pos + c.length, max_digits - 1);
  const ClassedChar next = scan.at(pos + c.length);
  if (!(c.flags & kNewline) && (next.flags & kLetter)) return scan.letters_end(pos + c.length + next.length);
  // " ?[^\s\p{L}\p{N}]+[\r\n]*"
  const bool symbol = !(c.flags & kSpace);
  if (symbol || (first == ' ' && next.length > 0 && !(next.flags & (kSpace | kLetter | kNumber)))) {
    return scan.newlines_end(scan.symbols_end(pos + c.length));
  }
  return scan.spaces_end<true, whole_at_end>(pos);
}

// [Lu Lt Lm Lo M]* [Ll Lm Lo M]+ from pos, then [Lu Lt Lm Lo M]+ [Ll Lm Lo M]*: where each ends, or pos.
struct CasedWord {
  size_t lower_end;  // of the first alternative
  size_t upper_end;  // of the second
};
CasedWord cased_word(const Scan& scan, size_t pos) {
  auto is_upper = [](uint8_t flags) { return (flags & (kLetter | kMark)) && !(flags & kLower); };
  auto is_lower = [](uint8_t flags) { return (flags & (kLetter | kMark)) && !(flags & kUpper); };
  // The upper part takes all it can; if no lower character follows, it gives back down to the last character that is
  // both (no case): from there the lower part takes that one and what directly follows it, which is nothing more.
  size_t upper_end = pos, after_both = pos;
  for (;;) {
    ClassedChar c = scan.at(upper_end);
    if (!is_upper(c.flags)) break;
    upper_end += c.length;
    if (is_lower(c.flags)) after_both = upper_end;
  }
  size_t lower_end = upper_end;
  for (;;) {
    ClassedChar c = scan.at(lower_end);
    if (!is_lower(c.flags)) break;
    lower_end += c.length;
  }
  if (lower_end > upper_end) return {lower_end, upper_end > pos ? lower_end : pos};
  return {after_both, upper_end};
}

size_t o200k_end(std::string_view text, size_t pos) {
  const Scan scan(text);
  const ClassedChar c = scan.at(pos);
  auto with_contraction = [&](size_t end) { return scan.byte(end) == '\'' ? end + scan.contraction(end, true) : end; };
  const bool may_lead = !(c.flags & (kNewline | kLetter | kNumber));
  if (may_lead || (c.flags & kLetter)) {
    CasedWord led{pos, pos}, bare{pos, pos};
    if (may_lead) {
      led = cased_word(scan, pos + c.length);
      if (led.lower_end > pos + c.length) return with_contraction(led.lower_end);
    }
    if (c.flags & (kLetter | kMark)) {
      bare = cased_word(scan, pos);
      if (bare.lower_end > pos) return with_contraction(bare.lower_end);
    }
    if (may_lead && led.upper_end > pos + c.length) return with_contraction(led.upper_end);
    if (bare.upper_end > pos) return with_contraction(bare.upper_end);
  }
  if (c.flags & kNumber) return scan.numbers_end(pos + c.length, 2);
  const ClassedChar next = scan.at(pos + c.length);
  const bool symbol = !(c.flags & kSpace);
  if (symbol || (scan.byte(pos) == ' ' && next.length > 0 && !(next.flags & (kSpace | kLetter | kNumber)))) {
    return scan.newlines_end(scan.symbols_end(pos + c.length), true);
  }
  return scan.spaces_end<true, false>(pos);
}

struct Known {
  SplitPattern pattern;
  std::string_view name;
  std::string_view regex;
};

constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
    R"(|\s+(?!\S)|\s+)";

// The first entry of each pattern is the spelling that is written out.
constexpr std::array kKnown{
    Known{SplitPattern::gpt2, "gpt2", R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    Known{SplitPattern::gpt2, "", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"},
    Known{SplitPattern::gpt2, "", R"('(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s)"},
    // Oniguruma, which reads the written file elsewhere, has other rules for $, and its {1,3}+ takes all digits:
    // tiktoken's own spelling is another pattern in a tokenizer.json.
    Known{SplitPattern::cl100k, "cl100k",
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z)"
          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
    Known{SplitPattern::llama3, "llama3", kLlama3Regex},
    Known{SplitPattern::llama3, "",
          R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n])"
          R"(|\s+(?!\S)|\s+)"},
    Known{SplitPattern::qwen2, "qwen2",
          R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
          R"(|\s+(?!\S)|\s+)"},
    Known{
        SplitPattern::o200k, "o200k",
        R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
        R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
};

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

}  // namespace

PieceEnd piece_end(SplitPattern pattern) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return gpt2_end;
    case SplitPattern::cl100k:
      return llama3_end<3, true>;
    case SplitPattern::llama3:
      return llama3_end<3, false>;
    case SplitPattern::qwen2:
      return llama3_end<1, false>;
    case SplitPattern::o200k:
      return o200k_end;
  }
  return nullptr;
}

std::string_view pattern_regex(SplitPattern pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.regex;
  }
  return {};
}

std::optional<SplitPattern> find_pattern(std::string_view regex) {
  for (const Known& known : kKnown) {
    if (known.regex == regex) return known.pattern;
  }
  return std::nullopt;
}

std::optional<SplitPattern> pattern_by_name(std::string_view name) {
  for (const Known& known : kKnown) {
    if (!name.empty() && known.name == name) return known.pattern;
  }
  return std::nullopt;
}

std::string_view pattern_name(SplitPattern pattern) {
  for (const Known& known : kKnown) {
    if (known.pattern == pattern) return known.name;
  }
  return {};
}

const std::vector<std::string>& pattern_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Known& known : kKnown) {
      if (!known.name.empty()) all.emplace_back(known.name);
    }
    return all;
  }();
  return names;
}

size_t safe_cut(std::string_view text, size_t from) {
  for (size_t pos = from + 1; pos < text.size(); ++pos) {
    if ((text[pos] == ' ' || text[pos] == '\n') && is_ascii_letter(text[pos - 1])) return pos;
  }
  return text.size();
}

}  // namespace sinter::tokenizer
