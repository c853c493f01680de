// Arguments of attention and of the paged cache it reads.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// Writes keys and values of a packed QKV batch into the paged cache of one layer.
struct KvWriteArgs {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor qkv;     // (T, W)
  Tensor slots;   // (T) i32, -1 = skip
  Tensor keys;    // (num_blocks, block_size, K, D)
  Tensor values;  // (num_blocks, block_size, K, D)
};

// Causal attention inside each sequence of a ragged batch, flash style: never a (T, T) matrix in memory.
// Query i of a sequence with context c and q tokens here stands at position c - q + i and sees keys at positions
// (position - window, position] (window 0: all up to its own). With `layer_keys` given, keys and values come from the
// paged cache (already written for this batch), else from qkv, where contexts equal query lengths.
struct AttentionShape {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  float scale = 1.0f;
  // On the probabilities: kept where key.uniform(i) >= dropout, i = first_dropped() + key position.
  float dropout = 0.0f;
  RandomKey key;
  int64_t first_token =
      0;  // number of the batch's first row among all of the step: masks do not depend on micro-batches
  static constexpr int kContextBits = 24;
  uint64_t first_dropped(int64_t head, int64_t row) const {
    return static_cast<uint64_t>((first_token + row) * num_heads + head) << kContextBits;
  }
};
struct AttentionForwardArgs {
  AttentionShape shape;
  const RaggedBatch* batch = nullptr;
  Tensor qkv;           // (T, W)
  Tensor layer_keys;    // (num_blocks, block_size, K, D) or empty
  Tensor layer_values;  // (num_blocks, block_size, K, D) or empty
  Tensor block_tables;  // (S, max_blocks) i32 or empty
  Tensor out;           // (T, H * D); rows of padding tokens are set to 0
  Tensor lse;           // (H, T) f32 or empty: log of the sum of exp(scale * score), for backward
};
struct AttentionBackwardArgs {  // without a cache only
  AttentionShape shape;
  const RaggedBatch* batch = nullptr;
  Tensor qkv;    // (T, W)
  Tensor out;    // (T, H * D)
  Tensor lse;    // (H, T) f32
  Tensor dout;   // (T, H * D)
  Tensor delta;  // (H, T) f32 scratch: row sums of dout * out
  Tensor dqkv;   // (T, W)
};

// attention_backward for queries and keys that had been rotated by cos_sin: the gradient of the rows before it.
struct RotatedAttentionBackwardArgs {
  AttentionBackwardArgs attention;
  Tensor cos_sin;  // (T, D) f32
};

}  // namespace sinter::kernels
