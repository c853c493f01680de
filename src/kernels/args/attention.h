// Arguments of attention and of the paged cache it reads.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// Writes keys and values of a packed QKV batch into the paged cache of one layer, rounded to the cache's format.
struct KvWriteArgs {
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor qkv;    // (T, W)
  Tensor slots;  // (T) i32, -1 = skip
  KvLayer cache;
};

// Causal attention inside each sequence of a ragged batch, flash style: never a (T, T) matrix in memory.
// Query i of a sequence with context c and q tokens here stands at position c - q + i and sees keys at positions
// (position - window, position] (window 0: all up to its own). With `cache` given, keys and values come from the
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
  // Heads here are heads [first_head, first_head + num_heads) of total_heads (0: there are no others).
  int64_t first_head = 0, total_heads = 0;
  static constexpr int kContextBits = 24;
  uint64_t first_dropped(int64_t head, int64_t row) const {
    const int64_t heads = total_heads > 0 ? total_heads : num_heads;
    return static_cast<uint64_t>((first_token + row) * heads + first_head + head) << kContextBits;
  }
};
struct AttentionForwardArgs {
  AttentionShape shape;
  const RaggedBatch* batch = nullptr;
  Tensor qkv;           // (T, W)
  KvLayer cache;        // or empty
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

// Attention of queries to keys and values that lie elsewhere, perhaps a part of all that the queries see: results of
// parts are joined by attention_combine. Query t sees key rows [key_begin[t], key_end[t]): with rows in the order of
// the sequences that says causality, documents and windows at once.
struct AttentionParts {
  AttentionShape shape;  // its window is not read
  // Rows may be wider than the heads: heads begin at a column.
  Tensor q, k, v;  // (Tq, .), (Tk, .), (Tk, .) compute format
  int64_t q_column = 0, k_column = 0, v_column = 0;
  Tensor key_begin, key_end;  // (Tq) i32
  // For dropout, (Tq) and (Tk) i32: the number of a query's row in the step (in place of first_token + t), and the
  // position of a key in its sequence. Empty without dropout.
  Tensor query_rows, key_positions;
};
struct AttentionPartialForwardArgs {
  AttentionParts parts;
  Tensor out;  // (Tq, H * D) f32: 0 where a query sees nothing
  Tensor lse;  // (H, Tq) f32: -inf there
};
struct AttentionCombineArgs {  // joins a further part into out and lse
  Tensor part, part_lse;       // as written by attention_partial_forward
  Tensor out, lse;             // (Tq, H * D), (H, Tq) f32, in place
};
struct AttentionPartialBackwardArgs {  // ADDS into dq, dk, dv
  AttentionParts parts;
  Tensor out, dout;  // (Tq, H * D) any format: of the joined result
  Tensor lse;        // (H, Tq) f32: of the joined result
  Tensor dq;         // (Tq, H * D) f32
  Tensor dk, dv;     // (Tk, K * D) f32
};

}  // namespace sinter::kernels
