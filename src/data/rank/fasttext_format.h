// What a fastText file holds, shared by the reader and the trainer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/rank/fasttext.h"

namespace sinter::data {

inline constexpr int32_t kFastTextMagic = 793712314, kFastTextVersion = 12;
inline constexpr std::string_view kEndOfSentence = "</s>", kLabelPrefix = "__label__";

// fastText's FNV-1a, which takes bytes as signed.
inline uint32_t fasttext_hash(std::string_view word) {
  uint32_t h = 2166136261u;
  for (char c : word) h = (h ^ static_cast<uint32_t>(static_cast<int8_t>(c))) * 16777619u;
  return h;
}

// Calls emit(token) for the tokens of one line, then with </s>.
template <class Emit>
void fasttext_tokens(std::string_view text, Emit emit) {
  auto is_space = [](char c) {
    return c == ' ' || c == '\n' || c == '\r' || c == '\t' || c == '\v' || c == '\f' || c == '\0';
  };
  for (size_t pos = 0; pos < text.size();) {
    while (pos < text.size() && is_space(text[pos])) ++pos;
    const size_t begin = pos;
    while (pos < text.size() && !is_space(text[pos])) ++pos;
    if (pos > begin) emit(text.substr(begin, pos - begin));
  }
  emit(kEndOfSentence);
}

struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
};

struct Dictionary {
  struct Entry {
    std::string text;
    int64_t count = 0;
    bool is_label = false;
  };
  std::vector<Entry> entries;  // words first, then labels
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> index;
  int32_t num_words = 0, num_labels = 0;
  int64_t num_tokens = 0;
  int64_t prune_size = -1;  // -1: not pruned
  std::unordered_map<int32_t, int32_t> prune;

  // Rows of the input matrix for a line.
  void line_rows(std::string_view text, const FastTextArgs& args, std::vector<int32_t>& rows) const;
  void subword_rows(std::string_view word, const FastTextArgs& args, std::vector<int32_t>& rows) const;
  void word_rows(std::string_view token, const FastTextArgs& args, std::vector<int32_t>& rows) const;

 private:
  void push_bucket(int64_t bucket, std::vector<int32_t>& rows) const;
};

}  // namespace sinter::data
