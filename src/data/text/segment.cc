#include "data/text/segment.h"

#include <algorithm>
#include <array>
#include <unordered_set>

#include "data/text/characters.h"
#include "tokenizer/unicode.h"

namespace sinter::data {
namespace {

constexpr uint32_t kEllipsis = 0x2026;

const std::unordered_set<std::string_view>& abbreviations() {
  static const std::unordered_set<std::string_view> set{
      "Apr", "Aug", "Ave",  "Blvd", "Capt",   "Co",  "Col",  "Corp", "Dec", "Dr",   "Feb", "Fig", "Gen", "Gov",
      "Hon", "Inc", "Jan",  "Jr",   "Jul",    "Jun", "Lt",   "Ltd",  "Mar", "Mr",   "Mrs", "Ms",  "Mt",  "No",
      "Nov", "Oct", "Ph.D", "Prof", "Rd",     "Rep", "Rev",  "Sen",  "Sep", "Sept", "Sgt", "Sr",  "St",  "U.K",
      "U.S", "Vol", "a.m",  "al",   "approx", "cf",  "dept", "e.g",  "est", "i.e",  "p.m", "pp",  "vs"};
  return set;
}

// The end of the word that begins at `begin` with a word character; `last` its flags. Fills chars and has_letter.
size_t extend_word(std::string_view text, size_t pos, uint32_t last, const CharFlags& flags, Word& word) {
  uint32_t letters = last & kLetterChar;
  uint32_t chars = 1;
  while (pos < text.size()) {
    size_t next = pos;
    const uint32_t code = next_char(text, next);
    const uint32_t f = flags(code);
    if (f & (kWordChar | kFormat)) {
      letters |= f & kLetterChar;
      ++chars;
      pos = next;
      last = f;
      continue;
    }
    const bool joins_digits = (code == ',' || code == ':') && (last & kDecimal);
    if (next >= text.size() || !((f & kJoiner) || joins_digits)) break;
    size_t behind = next;
    const uint32_t g = flags(next_char(text, behind));
    if (!(g & kWordChar) || (joins_digits && !(g & kDecimal))) break;
    letters |= g & kLetterChar;
    chars += 2;
    pos = behind;
    last = g;
  }
  word.chars = chars;
  word.has_letter = letters != 0;
  return pos;
}

template <class Emit>
void scan_words(std::string_view text, Emit emit) {
  const CharFlags flags;
  for (size_t pos = 0; pos < text.size();) {
    Word word;
    word.begin = static_cast<uint32_t>(pos);
    const uint32_t code = next_char(text, pos);
    const uint32_t f = flags(code);
    if (f & kWhite) continue;
    word.chars = 1;
    if (f & kHan) {
      word.has_letter = (f & kLetterChar) != 0;
      while (pos < text.size()) {
        size_t next = pos;
        if (!(flags(next_char(text, next)) & (kMarkChar | kFormat))) break;
        pos = next;
        ++word.chars;
      }
    } else if (f & kWordChar) {
      pos = extend_word(text, pos, f, flags, word);
      // A full-width digit is in the punctuation list; only words of nothing else are symbols.
      if (f & (kPunctuation | kTerminal)) {
        word.is_symbol = true;
        for (size_t p = word.begin; p < pos && word.is_symbol;)
          word.is_symbol = (flags(next_char(text, p)) & (kPunctuation | kTerminal)) != 0;
      }
    } else {
      word.has_letter = (f & kLetterChar) != 0;
      word.is_symbol = (f & (kPunctuation | kTerminal)) != 0;
      while (pos < text.size()) {
        size_t next = pos;
        if (next_char(text, next) != code) break;
        pos = next;
        ++word.chars;
      }
    }
    word.end = static_cast<uint32_t>(pos);
    emit(word);
  }
}

// Whether the full stop at `dot` belongs to an abbreviation or an initial of the sentence that begins at `start`.
bool is_abbreviation(std::string_view text, size_t start, size_t dot, const CharFlags& flags) {
  size_t begin = dot;
  while (begin > start) {
    size_t before = begin;
    if (flags(previous_char(text, before)) & kWhite) break;
    begin = before;
  }
  while (begin < dot) {
    size_t next = begin;
    if (!(flags(next_char(text, next)) & kOpener)) break;
    begin = next;
  }
  const std::string_view word = text.substr(begin, dot - begin);
  if (word.empty()) return false;
  size_t next = 0;
  const uint32_t first = next_char(word, next);
  if (next == word.size()) return (flags(first) & kUpperLetter) != 0;
  return word.size() <= 6 && abbreviations().contains(word);
}

template <class Emit>
void scan_sentences(std::string_view text, Emit emit) {
  constexpr size_t kNone = std::string_view::npos;
  const CharFlags flags;
  size_t start = kNone, last = 0;
  for (size_t pos = 0; pos < text.size();) {
    const size_t at = pos;
    const uint32_t code = next_char(text, pos);
    uint32_t f = flags(code);
    if (f & kWhite) {
      if (code == '\n' && start != kNone) {
        emit(Span{start, last});
        start = kNone;
      }
      continue;
    }
    if (start == kNone) start = at;
    if (!(f & kTerminal) && code != kEllipsis) {
      last = pos;
      continue;
    }
    bool is_hard = (f & kHardTerminal) != 0;
    const size_t first_end = pos;
    while (pos < text.size()) {
      size_t next = pos;
      const uint32_t c = next_char(text, next);
      f = flags(c);
      if (!(f & kTerminal) && c != kEllipsis) break;
      is_hard = is_hard || (f & kHardTerminal);
      pos = next;
    }
    const bool is_single_dot = pos == first_end && code == '.';
    while (pos < text.size()) {
      size_t next = pos;
      if (!(flags(next_char(text, next)) & kCloser)) break;
      pos = next;
    }
    last = pos;
    if (!is_hard && pos < text.size()) {
      size_t next = pos;
      if (!(flags(next_char(text, next)) & kWhite)) continue;
    }
    if (is_single_dot && pos == first_end && pos < text.size() && is_abbreviation(text, start, at, flags)) continue;
    emit(Span{start, last});
    start = kNone;
  }
  if (start != kNone) emit(Span{start, last});
}

// Between the parts of one number: . , and their like in other scripts.
bool is_number_separator(uint32_t c) {
  return c == '.' || c == ',' || c == 0x60c || c == 0x66b || c == 0x2396 || c == 0x2397 || c == 0x2398;
}

struct AsciiSimple {
  std::array<char, 128> form;  // ' ' for white space and punctuation, lower case for the rest
  AsciiSimple() {
    const CharFlags flags;
    for (uint32_t c = 0; c < 128; ++c) {
      const uint32_t f = flags(c);
      form[c] = static_cast<char>((f & (kPunctuation | kPythonSpace)) ? ' ' : c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
  }
};

std::string simplify_ascii(std::string_view text) {
  static const AsciiSimple simple;
  std::string out(text.size(), '\0');
  char* to = out.data();
  char last = ' ';
  auto is_digit = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '9'; };
  for (size_t pos = 0; pos < text.size();) {
    if (is_digit(pos)) {
      while (is_digit(pos)) ++pos;
      if (pos < text.size() && (text[pos] == '.' || text[pos] == ',') && is_digit(pos + 1)) {
        ++pos;
        while (is_digit(pos)) ++pos;
      }
      *to++ = last = '0';
      continue;
    }
    const char c = simple.form[static_cast<unsigned char>(text[pos++])];
    if (c == ' ' && last == ' ') continue;
    *to++ = last = c;
  }
  if (to != out.data() && to[-1] == ' ') --to;
  out.resize(static_cast<size_t>(to - out.data()));
  return out;
}

}  // namespace

void segment_words(std::string_view text, std::vector<Word>& words) {
  words.clear();
  scan_words(text, [&](const Word& word) { words.push_back(word); });
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  scan_words(text, [&](const Word& word) { words.push_back(word.in(text)); });
  return words;
}

int64_t count_words(std::string_view text) {
  int64_t count = 0;
  scan_words(text, [&](const Word&) { ++count; });
  return count;
}

std::vector<Span> segment_sentences(std::string_view text) {
  std::vector<Span> spans;
  scan_sentences(text, [&](Span span) { spans.push_back(span); });
  return spans;
}

int64_t count_sentences(std::string_view text) {
  int64_t count = 0;
  scan_sentences(text, [&](Span) { ++count; });
  return std::max<int64_t>(count, 1);
}

std::string simplify(std::string_view text) {
  if (is_ascii(text)) return simplify_ascii(text);
  const CharFlags flags;
  const std::string low = lower(text);
  std::string spaced;
  spaced.reserve(low.size());
  bool was_space = true;
  auto put = [&](std::string_view piece, bool is_space) {
    if (!is_space) {
      spaced.append(piece);
    } else if (!was_space) {
      spaced.push_back(' ');
    }
    was_space = is_space;
  };
  for (size_t pos = 0; pos < low.size();) {
    const size_t at = pos;
    const uint32_t f = flags(next_char(low, pos));
    if (f & kDecimal) {
      auto skip_digits = [&](size_t from) {
        size_t next = from;
        while (next < low.size() && (flags(next_char(low, next)) & kDecimal)) from = next;
        return from;
      };
      pos = skip_digits(pos);
      if (pos < low.size()) {
        size_t behind = pos;
        if (is_number_separator(next_char(low, behind))) {
          const size_t end = skip_digits(behind);
          if (end > behind) pos = end;
        }
      }
      put("0", false);
      continue;
    }
    put(std::string_view(low).substr(at, pos - at), (f & (kPunctuation | kPythonSpace)) != 0);
  }
  if (!spaced.empty() && spaced.back() == ' ') spaced.pop_back();
  const std::string bare =
      tokenizer::strip_nonspacing_marks(tokenizer::normalize_unicode(spaced, tokenizer::NormalForm::nfd));
  return std::string(strip(bare));
}

}  // namespace sinter::data
