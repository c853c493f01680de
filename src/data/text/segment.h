// Words and sentences: the one segmentation that every filter, deduplication and ranking step shares (docs/data.md).
//
// Words: White_Space separates. A Han character with its marks is a word. A letter, mark or number begins a word, which
// goes on over letters, marks, numbers and format characters, over one of ' ’ - ‐ ‑ . _ when a letter, mark or number
// follows, and over , or : between two decimal digits. Anything else: a run of the same code point is one word.
//
// Sentences end at a line feed, at the end of the text, and after terminals with their closers when white space or the
// end follows or one of them is full-width; not after the full stop of an abbreviation or of a single capital.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

struct Word {
  uint32_t begin = 0, end = 0;  // bytes
  uint32_t chars = 0;           // code points
  bool has_letter = false;      // some character of category L*
  bool is_symbol = false;       // all characters are punctuation or terminal punctuation
  std::string_view in(std::string_view text) const { return text.substr(begin, end - begin); }
};
// Replaces the content of `words`. The text is shorter than 4 GiB.
void segment_words(std::string_view text, std::vector<Word>& words);
std::vector<std::string_view> words_of(std::string_view text);
int64_t count_words(std::string_view text);

struct Span {
  size_t begin = 0, end = 0;  // bytes; the first and last characters are no white space
};
std::vector<Span> segment_sentences(std::string_view text);
// As C4 counts: an empty text has one.
int64_t count_sentences(std::string_view text);

// The form in which near duplicates are compared: lower case, numbers as "0", punctuation as spaces, single spaces,
// no accents (datatrove's simplify_text).
std::string simplify(std::string_view text);

}  // namespace sinter::data
