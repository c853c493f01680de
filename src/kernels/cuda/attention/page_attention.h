// Attention of many queries over pages: prompts, chunks of prompts behind what the cache holds already.
//
// The queries of a sequence are cut into pieces, each a sequence of its own to the kernel that takes them (cuDNN's over
// pages): a query sees what lies before it, so a piece is the last queries of a context that ends with it. Few graphs
// then serve all lengths, and a batch of one long prompt and many decoding rows has no more work than its pieces.
// Lengths and places are written on the device; the host knows bounds.
//
// Pages of the cache hold few tokens, which suits decoding. For pieces the sequences' keys and values are gathered into
// pages of kGatheredTokens, in the format of the queries, where that takes little memory; else the kernel reads the
// cache's own.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cuda {

struct AttentionParams;

inline constexpr int kPieceQueries = 768;      // multiple of any kernel's tile of queries
inline constexpr int kLeastPieceQueries = 64;  // sequences with fewer are left to others
inline constexpr int kGatheredTokens = 128;
inline constexpr int kMostPieceSequences = 1024;

// What a kernel for pieces is built for.
struct PieceShape {
  int64_t pieces, keys;  // at most, in coarse steps
  int64_t heads, kv_heads, dim;
  int64_t row_width;                               // of packed queries, keys and values
  int64_t window;                                  // 0: none
  int64_t page_tokens;                             // of a page
  int64_t page_stride, head_stride, token_stride;  // of keys and values, in elements
  base::DType dtype;
  float scale;
  int64_t table_width() const { return (keys + page_tokens - 1) / page_tokens; }
  auto operator<=>(const PieceShape&) const = default;
};

// On the device. Pieces from the batch's own number on are empty.
struct Pieces {
  int32_t *query_lengths, *key_lengths;   // (pieces)
  int64_t *query_places, *output_places;  // (pieces + 1): elements of packed rows and of outputs before each
  int32_t* tables;                        // (pieces, table_width): pages of each piece's keys
};

struct PieceCall {
  PieceShape shape;
  Pieces pieces;
  const void *queries, *keys, *values;
  void *out, *workspace;
};

// Takes the sequences of at least kLeastPieceQueries queries; others are left alone, as are padding rows. `params` are
// the call's. False: not taken, nothing was enqueued.
bool page_attention(Stream& stream, const AttentionForwardArgs& args, const AttentionParams& params);

// cuDNN's. find_piece_kernel: whether there is one, made now if need be, and the memory it works in.
bool find_piece_kernel(Stream& stream, const PieceShape& shape, size_t& workspace_bytes);
void piece_attention(Stream& stream, const PieceCall& call);
int64_t num_piece_calls();  // how many it has taken (-1: there is none): tests see which way was gone

}  // namespace sinter::kernels::cuda
