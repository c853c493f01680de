// The batch that training and serving share: sequences of any length laid end to end, with or without cached keys.
#pragma once
#include <vector>

#include "core/kv_cache.h"
#include "core/tensor.h"

namespace sinter::core {

// How a batch's sequences lie in a KvCache.
struct KvView {
  const KvCache* cache = nullptr;
  Tensor block_tables;  // (S, max_blocks) i32: the blocks of each sequence in order; unused entries are any valid block
  Tensor slots;  // (T) i32: block * block_size + place where each token's key and value are written; -1 = padding
};

// Where a batch's tokens stand among those that ranks of the context axis share. Every rank's tokens are in the order
// of the sequences, so what a query sees of a rank's keys is a range of its rows.
struct ContextView {
  struct Window {
    int64_t window = 0;  // of a layer: keys a query sees, 0 = all
    Tensor key_begin;    // (P, T) i32: the first row of each rank's keys
  };
  Tensor rows;                  // (T) i32: number of each token in the step
  std::vector<Window> windows;  // of the model's layers, each once
  Tensor key_end;               // (P, T) i32
  Tensor key_positions;         // (P, T) i32: places of each rank's keys in their sequences
};

// Noise that is added to the embeddings of a batch's tokens while it trains.
struct RowNoise {
  Tensor streams;  // (T, 2) i32: each token's stream of random numbers, low half first
  Tensor scales;   // (T) f32: bound of the noise; 0: none
};

// Host counts are upper bounds that depend on the bucket only, so that captured graphs and plans can be reused.
struct RaggedBatch {
  Tensor tokens;       // (T) i32
  Tensor positions;    // (T) i32: place of each token in its sequence, cached tokens counted
  Tensor sequence_of;  // (T) i32: which sequence a token belongs to; padding tokens hold -1
  Tensor offsets;      // (S + 1) i32: sequence s is tokens [offsets[s], offsets[s + 1])
  Tensor contexts;     // (S) i32: keys a sequence's last token sees: cached tokens plus its tokens here
  Tensor targets;      // (T) i32 or empty: the token to predict; -1 = not supervised
  int64_t num_tokens = 0;
  int64_t num_sequences = 0;
  int64_t max_query = 0;    // longest sequence in this batch
  int64_t max_context = 0;  // longest context
  // The host knows that every sequence has exactly max_query tokens and that there is no padding: plain training
  // batches. Lets CUDA take our attention for Hopper, or cuDNN's.
  bool equal_lengths = false;
  // Training batches: the sequences from here on are empty, in coarse steps (coarse_bound) so that few passes differ by
  // it. 0: not known. Lets CUDA take cuDNN's attention for documents, whose time grows with the number of sequences.
  int64_t filled_sequences = 0;
  const KvView* kv = nullptr;            // null in training
  RowNoise noise;                        // empty: none
  const ContextView* context = nullptr;  // null unless ranks share the sequences: attention is theirs together
  std::vector<int32_t> host_contexts;    // `contexts` on the host: dynamic RoPE turns by a sequence's length
};

// Whether offsets (S + 1) cut num_tokens tokens into sequences of max_query each: RaggedBatch::equal_lengths.
inline bool has_equal_lengths(const std::vector<int32_t>& offsets, int64_t max_query, int64_t num_tokens) {
  for (size_t s = 0; s < offsets.size(); ++s) {
    if (offsets[s] != static_cast<int64_t>(s) * max_query) return false;
  }
  return !offsets.empty() && offsets.back() == num_tokens;
}

// The least of 16, 24, 32, 48, 64, 96, ... that is not below n.
inline int64_t coarse_bound(int64_t n) {
  int64_t power = 16;
  while (power < n) power *= 2;
  return power > 16 && power / 4 * 3 >= n ? power / 4 * 3 : power;
}

}  // namespace sinter::core
