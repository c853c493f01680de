#include "data/rank/fasttext_format.h"

namespace sinter::data {

void Dictionary::push_bucket(int64_t bucket, std::vector<int32_t>& rows) const {
  if (prune_size == 0) return;
  if (prune_size > 0) {
    const auto at = prune.find(static_cast<int32_t>(bucket));
    if (at == prune.end()) return;
    bucket = at->second;
  }
  rows.push_back(num_words + static_cast<int32_t>(bucket));
}

void Dictionary::subword_rows(std::string_view token, const FastTextArgs& args, std::vector<int32_t>& rows) const {
  std::string word;
  word.reserve(token.size() + 2);
  word.append("<").append(token).append(">");
  auto is_inside = [&](size_t i) { return (static_cast<unsigned char>(word[i]) & 0xc0) == 0x80; };
  for (size_t i = 0; i < word.size(); ++i) {
    if (is_inside(i)) continue;
    size_t j = i;
    for (int32_t n = 1; j < word.size() && n <= args.max_n; ++n) {
      ++j;
      while (j < word.size() && is_inside(j)) ++j;
      if (n < args.min_n || (n == 1 && (i == 0 || j == word.size()))) continue;
      push_bucket(fasttext_hash(std::string_view(word).substr(i, j - i)) % static_cast<uint32_t>(args.bucket), rows);
    }
  }
}

void Dictionary::word_rows(std::string_view token, const FastTextArgs& args, std::vector<int32_t>& rows) const {
  const auto at = index.find(token);
  if (at != index.end()) rows.push_back(at->second);
  if (token != kEndOfSentence && args.max_n > 0 && args.bucket > 0) subword_rows(token, args, rows);
}

void Dictionary::line_rows(std::string_view text, const FastTextArgs& args, std::vector<int32_t>& rows) const {
  rows.clear();
  static thread_local std::vector<int32_t> hashes;
  hashes.clear();
  bool has_ended = false;
  fasttext_tokens(text, [&](std::string_view token) {
    if (has_ended) return;
    const auto at = index.find(token);
    const bool is_label =
        at != index.end() ? entries[static_cast<size_t>(at->second)].is_label : token.starts_with(kLabelPrefix);
    if (is_label) return;
    word_rows(token, args, rows);
    hashes.push_back(static_cast<int32_t>(fasttext_hash(token)));
    has_ended = token == kEndOfSentence;
  });
  if (args.bucket <= 0) return;
  for (size_t i = 0; i < hashes.size(); ++i) {
    auto h = static_cast<uint64_t>(static_cast<int64_t>(hashes[i]));
    for (size_t j = i + 1; j < hashes.size() && j < i + static_cast<size_t>(args.word_ngrams); ++j) {
      h = h * 116049371u + static_cast<uint64_t>(static_cast<int64_t>(hashes[j]));
      push_bucket(static_cast<int64_t>(h % static_cast<uint64_t>(args.bucket)), rows);
    }
  }
}

}  // namespace sinter::data
