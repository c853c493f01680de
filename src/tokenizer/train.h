// Byte-level BPE training.
//
// The text is cut at special tokens, split into pieces by the pattern, and the pieces are counted. Symbols start as the
// 256 bytes; then the most frequent pair of neighbouring symbols within the pieces is merged, again and again.
// Equal counts: the pair whose left byte string is lexicographically greatest wins, then the greatest right one, so the
// result depends on the text alone, not on threads, hashing or the order of files. Where merging makes a byte string
// that another pair has made before, the older token is used again and the vocabulary does not grow by that merge.
//
// Ids: 0..255 the bytes in order, then the merges in order, then the special tokens.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {

struct TrainOptions {
  int32_t vocab_size = 32768;               // bytes, merges and special tokens together
  std::vector<std::string> special_tokens;  // never part of a merge; the first becomes BOS and EOS
  std::string pattern = "gpt2";             // a name (gpt2, cl100k, llama3, qwen2, o200k) or a regular expression
  uint64_t min_count = 1;                   // stop when no pair occurs so often
  std::function<void(int32_t done, int32_t wanted)> progress;  // after every 256 merges; may be empty
};

struct BpeTraining {
  Tokenizer tokenizer;
  std::vector<std::pair<std::string, std::string>> merges;  // as byte strings, in order
  uint64_t num_pieces = 0;                                  // pieces counted
  size_t num_distinct = 0;                                  // distinct ones
};

// Counts on all cores. The tokenizer may come out smaller than asked when the text has no pairs left.
// Throws base::UsageError for a vocabulary that cannot hold the bytes and special tokens, a special token that is empty
// or given twice, or a bad pattern; base::Error for no text at all.
BpeTraining train_bpe(std::span<const std::string_view> texts, const TrainOptions& options);

}  // namespace sinter::tokenizer
