// What our attention kernels share: where queries, keys and values lie, who sees whom, dropout.
//
// Query heads that share a key head are packed into the rows of one tile: packed row m of a sequence is query m / G of
// head (kv head * G + m % G), G = H / K. So keys are read once for the group, and the gradients of keys and values sum
// over the group inside one block: no atomics.
#pragma once
#include <cuda_fp8.h>

#include "kernels/cuda/mma.cuh"

namespace sinter::kernels::cuda {

struct AttentionParams {
  const void* qkv;            // (T, W)
  const void *keys, *values;  // paged cache or null
  const int32_t *offsets, *contexts, *block_tables;
  void* out;                     // forward
  const void *saved_out, *dout;  // backward
  float* lse;                    // (H, T)
  float* delta;                  // (H, T)
  void* dqkv;
  const float *key_scales, *value_scales;           // (K) of a cache in fp8, else null
  bool is_int8;                                     // a cache whose rows end with their scale (core/kv_format.h)
  int64_t block_stride, head_stride, token_stride;  // of the cache, in elements
  int64_t tokens, width, max_blocks, first_token, first_head, total_heads;
  int num_sequences, num_heads, num_kv_heads, head_dim, group, block_size;
  int window;
  int least_queries;  // sequences with fewer are another kernel's
  bool vector;        // every row of a head starts on a 16-byte boundary
  float scale, dropout, keep_factor;
  RandomKey key;
};

// One sequence seen from one key head.
struct AttentionSequence {
  int index, kv_head;
  int64_t first;         // its first row
  int queries, context;  // tokens here; keys its last token sees
};

__device__ __forceinline__ AttentionSequence sequence_at(const AttentionParams& p, int s, int kv_head) {
  AttentionSequence q{s, kv_head, p.offsets[s], p.offsets[s + 1] - p.offsets[s], 0};
  q.context = p.keys ? p.contexts[s] : q.queries;
  return q;
}

template <class T>
__device__ __forceinline__ const T* query_row(const AttentionParams& p, const AttentionSequence& s, int m) {
  int query = m / p.group, head = s.kv_head * p.group + m % p.group;
  return static_cast<const T*>(p.qkv) + (s.first + query) * p.width + int64_t{head} * p.head_dim;
}
template <class T>
__device__ __forceinline__ const T* out_row(const AttentionParams& p, const void* base, const AttentionSequence& s,
                                            int m) {
  int query = m / p.group, head = s.kv_head * p.group + m % p.group;
  return static_cast<const T*>(base) + ((s.first + query) * p.num_heads + head) * p.head_dim;
}
// Where key or value j of the sequence lies in the cache.
__device__ __forceinline__ int64_t cache_offset(const AttentionParams& p, const AttentionSequence& s, int j) {
  int64_t block = p.block_tables[s.index * p.max_blocks + j / p.block_size];
  return block * p.block_stride + j % p.block_size * p.token_stride + s.kv_head * p.head_stride;
}
// Row of key (which = 0) or value (1) j, of a cache in the format of the queries or of packed rows.
template <class T>
__device__ __forceinline__ const T* key_row(const AttentionParams& p, const AttentionSequence& s, int j, int which) {
  if (p.keys) {
    return static_cast<const T*>(which == 0 ? p.keys : p.values) + cache_offset(p, s, j);
  }
  int head = p.num_heads + which * p.num_kv_heads + s.kv_head;
  return static_cast<const T*>(p.qkv) + (s.first + j) * p.width + int64_t{head} * p.head_dim;
}

// Query `query` of the sequence sees keys [first_key, position].
__device__ __forceinline__ int position_of(const AttentionSequence& s, int query) {
  return s.context - s.queries + query;
}
__device__ __forceinline__ bool sees(const AttentionParams& p, int position, int key) {
  return key <= position && (p.window == 0 || key > position - p.window);
}

// 1 / (1 - p) where a probability is kept, else 0.
__device__ __forceinline__ float dropout_factor(const AttentionParams& p, const AttentionSequence& s, int m, int key) {
  int64_t row = s.first + m / p.group, head = s.kv_head * p.group + m % p.group;
  uint64_t index = (static_cast<uint64_t>((p.first_token + row) * p.total_heads + p.first_head + head)
                    << AttentionShape::kContextBits) +
                   key;
  return random_uniform(p.key, index) >= p.dropout ? p.keep_factor : 0.0f;
}

// Fills a (kRows, kDim) tile from the rows that row_of(r) points at (null: zeros), kThreads threads together.
template <class T, int kRows, int kDim, int kThreads, class RowOf>
__device__ __forceinline__ void load_tile(T* tile, const AttentionParams& p, RowOf&& row_of) {
  constexpr int kChunks = kDim / 8;
#pragma unroll 4
  for (int i = threadIdx.x; i < kRows * kChunks; i += kThreads) {
    int r = i / kChunks, d = i % kChunks * 8;
    const T* row = row_of(r);
    T* to = tile + r * (kDim + kPad) + d;
    if (p.vector) {
      bool valid = row != nullptr && d < p.head_dim;
      copy_async(to, valid ? row + d : static_cast<const T*>(p.qkv), valid);
    } else {
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = row != nullptr && d + j < p.head_dim ? row[d + j] : from_float<T>(0.0f);
    }
  }
}

// The f16 behind a row of int8 codes, at any address.
__device__ __forceinline__ float int8_row_scale(const int8_t* row, int dim) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(row + dim);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bytes[0] | bytes[1] << 8)));
}

// Fills a (kRows, kDim) tile from a cache in codes: offset_of(r) is where a row begins, negative: zeros. `scale` is
// fp8's; a row in int8 has its own.
template <class T, int kRows, int kDim, int kThreads, class OffsetOf>
__device__ __forceinline__ void load_coded_tile(T* tile, const AttentionParams& p, const void* cache, float scale,
                                                OffsetOf&& offset_of) {
  for (int i = threadIdx.x; i < kRows * kDim; i += kThreads) {
    int r = i / kDim, d = i % kDim;
    int64_t offset = offset_of(r);
    bool valid = offset >= 0 && d < p.head_dim;
    float x = 0;
    if (valid && p.is_int8) {
      const auto* row = static_cast<const int8_t*>(cache) + offset;
      x = int8_row_scale(row, p.head_dim) * static_cast<float>(row[d]);
    } else if (valid) {
      x = scale * float(static_cast<const __nv_fp8_e4m3*>(cache)[offset + d]);
    }
    tile[r * (kDim + kPad) + d] = from_float<T>(x);
  }
}

// Sets where the cache lies, and how.
void set_cache(AttentionParams& p, const AttentionForwardArgs& args);
// Fills the parameters both directions share.
AttentionParams make_attention_params(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv);
// Rows of padding tokens (those after the last sequence) of (T, width) become 0; so does a (H, T) array when given.
void zero_padding_rows(Stream& stream, const AttentionParams& p, const Tensor& rows, float* per_head);

// Sequences of up to kMostDecodeQueries queries over a cache, and the padding rows; others are left alone. False: not
// taken, nothing was enqueued.
inline constexpr int kMostDecodeQueries = 8;
bool decode_attention(Stream& stream, const AttentionParams& p, base::DType dtype, int64_t max_query,
                      int64_t max_context);

void flash_forward_f32(Stream& stream, const AttentionParams& p);
void flash_backward_f32(Stream& stream, const AttentionParams& p);

// Calls body with the head dimension padded to one of the sizes the kernels are built for; fewer of them with dropout.
template <class Body>
void dispatch_head_dim(int64_t head_dim, bool has_dropout, Body&& body) {
  SINTER_CHECK(head_dim >= 1 && head_dim <= 256, "[attention] head size {} on CUDA; expected 1 to 256", head_dim);
  auto call = [&]<int kDim>(std::integral_constant<int, kDim> dim) {
    if constexpr (kDim == 96) {
      body(dim, std::false_type{});
    } else {
      has_dropout ? body(dim, std::true_type{}) : body(dim, std::false_type{});
    }
  };
  if (head_dim <= 64) return call(std::integral_constant<int, 64>{});
  if (head_dim <= 96 && !has_dropout) return call(std::integral_constant<int, 96>{});
  if (head_dim <= 128) return call(std::integral_constant<int, 128>{});
  return call(std::integral_constant<int, 256>{});
}

}  // namespace sinter::kernels::cuda
