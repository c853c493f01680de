// Exact duplicates: whole documents, lines, sentences, word n-grams and substrings.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "data/text/segment.h"

namespace sinter::data {

// Which of the documents with these keys stay: of equal keys the one with the highest priority, then the first.
// `priorities` may be empty.
std::vector<bool> keep_first_of_equal(const std::vector<std::string_view>& keys,
                                      const std::vector<int64_t>& priorities);

enum class TextUnit { sentence, line, paragraph };  // paragraphs stand between empty lines
struct SpanDedupOptions {
  int64_t span = 3;  // units in a row that are compared together
  TextUnit unit = TextUnit::sentence;
  int64_t min_words = 0;      // a document that was changed must keep as many,
  int64_t min_sentences = 0;  // and as many sentences
};
// Removes paragraphs, lines or sentences that occurred before, in earlier documents or earlier in the same one.
// Compared by simplify(), so case, numbers, punctuation and accents do not matter; what simplifies to nothing stays.
class SpanDedup {
 public:
  explicit SpanDedup(SpanDedupOptions options) : options_(options) {}
  // The text that is left; nothing when the document goes.
  std::optional<std::string> add(std::string_view text);

 private:
  SpanDedupOptions options_;
  std::unordered_set<uint64_t> seen_;
};

// Share of a document's word n-grams that earlier documents had.
class NgramDedup {
 public:
  explicit NgramDedup(int64_t ngram = 13) : ngram_(ngram) {}
  struct Counts {
    int64_t shingles = 0, duplicates = 0;
    double share() const { return shingles > 0 ? static_cast<double>(duplicates) / static_cast<double>(shingles) : 0; }
  };
  Counts add(std::string_view text);

 private:
  int64_t ngram_;
  std::unordered_set<uint64_t> seen_;
};

// The hashes (XXH64) of the word n-grams of a simplified text, in order.
std::vector<uint64_t> ngram_hashes(std::string_view text, int64_t ngram);
uint64_t hash_text64(std::string_view text);

// Substrings of at least `least` bytes that occurred before in the same texts (together below 2 GiB), by a suffix
// array: for every text the spans to cut, in order, apart, at character boundaries. The first occurrence of each stays.
std::vector<std::vector<Span>> find_repeated_substrings(const std::vector<std::string_view>& texts, int64_t least);
// Suffix array of bytes, for tests: positions in the order of the suffixes.
std::vector<int32_t> suffix_array(std::string_view text);

}  // namespace sinter::data
