// Flash attention forward on tensor cores (mma.sync), for every case of the table: ragged sequences, sliding windows,
// grouped heads, paged keys, dropout. f32 goes to attention_f32.cu.
#include <limits>

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/attention/page_attention.h"

namespace sinter::kernels::cuda {
namespace {

constexpr int kKeys = 64;
constexpr int kThreads = 128;
constexpr float kLn2 = 0.6931471805599453f;

template <int kDim, int kTiles>
constexpr size_t forward_shared_bytes() {
  return sizeof(uint16_t) * (64 * kTiles + 2 * kKeys) * (kDim + kPad);
}

// Walks the keys in tiles counted from the sequence's start, so a row's result does not depend on the rest of the
// batch. A warp has kTiles pieces of 16 packed queries: with two, each key fragment read from shared memory feeds four
// products.
template <class T, int kDim, int kTiles, bool kDropout>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionParams p, int most_queries) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kStride = kDim + kPad, kRows = 64 * kTiles;
  T* q_tile = reinterpret_cast<T*>(shared);
  T* k_tile = q_tile + kRows * kStride;
  T* v_tile = k_tile + kKeys * kStride;

  int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;  // long rows of a causal batch first
  int s_index = find_group(p.offsets, p.num_sequences, p.group, kRows, block);
  AttentionSequence s = sequence_at(p, s_index, blockIdx.y);
  int row0 = static_cast<int>(block - tile_start(p.offsets, s_index, p.group, kRows)) * kRows;
  int num_rows = s.queries * p.group;
  if (row0 >= num_rows || row0 < 0 || s.queries < p.least_queries) return;
  if (s.queries > most_queries) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  int last_query = min((row0 + kRows - 1) / p.group, s.queries - 1);
  int lowest = position_of(s, row0 / p.group), highest = position_of(s, last_query);
  int first_tile = p.window > 0 ? max(0, lowest - p.window + 1) / kKeys : 0, last_tile = highest / kKeys;

  auto load_keys = [&](T* tile, int t, int which) {
    if (p.key_scales || p.is_int8) {
      const float scale = p.is_int8 ? 1.0f : (which == 0 ? p.key_scales : p.value_scales)[s.kv_head];
      load_coded_tile<T, kKeys, kDim, kThreads>(tile, p, which == 0 ? p.keys : p.values, scale, [&](int r) {
        int j = t * kKeys + r;
        return j <= highest ? cache_offset(p, s, j) : int64_t{-1};
      });
      return copy_commit();
    }
    load_tile<T, kKeys, kDim, kThreads>(tile, p, [&](int r) {
      int j = t * kKeys + r;
      return j <= highest ? key_row<T>(p, s, j, which) : nullptr;
    });
    copy_commit();
  };
  load_tile<T, kRows, kDim, kThreads>(
      q_tile, p, [&](int r) { return row0 + r < num_rows ? query_row<T>(p, s, row0 + r) : nullptr; });
  load_keys(k_tile, first_tile, 0);

  // This thread's rows (two of each piece), and their places in the sequence.
  int m[2 * kTiles], position[2 * kTiles];
#pragma unroll
  for (int h = 0; h < 2 * kTiles; ++h) {
    m[h] = row0 + (warp * kTiles + h / 2) * 16 + lane / 4 + h % 2 * 8;
    position[h] = position_of(s, m[h] / p.group);
  }
  float out[kTiles][kDim / 8][4] = {};
  float largest[2 * kTiles], sum[2 * kTiles] = {};
#pragma unroll
  for (float& x : largest) x = -INFINITY;
  float scale2 = p.scale * kLog2e;

  for (int t = first_tile; t <= last_tile; ++t) {
    copy_wait<0>();
    __syncthreads();  // keys are here; the values of the last turn are no longer read
    load_keys(v_tile, t, 1);

    float score[kTiles][kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) load_a(a[i], q_tile, kStride, (warp * kTiles + i) * 16, k, lane);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t b[4];
        load_b(b, k_tile, kStride, n, k, lane);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          mma_16x8x16<T>(score[i][n / 8], a[i], b[0], b[1]);
          mma_16x8x16<T>(score[i][n / 8 + 1], a[i], b[2], b[3]);
        }
      }
    }
    __syncthreads();  // keys are no longer read
    if (t < last_tile) {
      load_keys(k_tile, t + 1, 0);
    } else {
      copy_commit();  // an empty group, so that the count below holds
    }

    bool is_inner = (t + 1) * kKeys - 1 <= lowest && (p.window == 0 || t * kKeys > highest - p.window);
    if (!is_inner) {
#pragma unroll
      for (int n = 0; n < kTiles * kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int piece = n / (kKeys / 8), column = n % (kKeys / 8);
          int key = t * kKeys + column * 8 + lane % 4 * 2 + i % 2;
          if (!sees(p, position[2 * piece + i / 2], key)) score[piece][column][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2 * kTiles; ++h) {
      int piece = h / 2, low = h % 2 * 2;
      float top = largest[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(score[piece][n][low], score[piece][n][low + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      float base = top == -INFINITY ? 0.0f : top * scale2;
      float shrink = exp2f(largest[h] * scale2 - base);  // 0 for a first tile
      largest[h] = top;
      sum[h] *= shrink;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        out[piece][d][low] *= shrink;
        out[piece][d][low + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float e = exp2f(score[piece][n][low + i] * scale2 - base);
          sum[h] += e;
          if constexpr (kDropout) e *= dropout_factor(p, s, m[h], t * kKeys + n * 8 + lane % 4 * 2 + i);
          score[piece][n][low + i] = e;
        }
      }
    }
    copy_wait<1>();
    __syncthreads();  // values are here
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[kTiles][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const float(&left)[4] = score[i][k / 8];
        const float(&right)[4] = score[i][k / 8 + 1];
        a[i][0] = pack<T>(left[0], left[1]);
        a[i][1] = pack<T>(left[2], left[3]);
        a[i][2] = pack<T>(right[0], right[1]);
        a[i][3] = pack<T>(right[2], right[3]);
      }
#pragma unroll
      for (int n = 0; n < kDim; n += 16) {
        uint32_t b[4];
        load_b_transposed(b, v_tile, kStride, n, k, lane);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          mma_16x8x16<T>(out[i][n / 8], a[i], b[0], b[1]);
          mma_16x8x16<T>(out[i][n / 8 + 1], a[i], b[2], b[3]);
        }
      }
    }
  }
  copy_wait<0>();

#pragma unroll
  for (int h = 0; h < 2 * kTiles; ++h) {
    int piece = h / 2, low = h % 2 * 2;
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    if (m[h] >= num_rows) continue;
    float inverse = sum[h] > 0 ? 1.0f / sum[h] : 0.0f;
    T* to = const_cast<T*>(out_row<T>(p, p.out, s, m[h]));
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      int column = d * 8 + lane % 4 * 2;
      float left = out[piece][d][low] * inverse, right = out[piece][d][low + 1] * inverse;
      if (p.vector) {
        if (column < p.head_dim) *reinterpret_cast<uint32_t*>(to + column) = pack<T>(left, right);
      } else {
        if (column < p.head_dim) to[column] = from_float<T>(left);
        if (column + 1 < p.head_dim) to[column + 1] = from_float<T>(right);
      }
    }
    if (p.lse && lane % 4 == 0) {
      int64_t head = s.kv_head * p.group + m[h] % p.group;
      p.lse[head * p.tokens + s.first + m[h] / p.group] = largest[h] * p.scale + log2f(sum[h]) * kLn2;
    }
  }
}

__global__ void zero_padding_kernel(const int32_t* offsets, int num_sequences, uint16_t* rows, int64_t tokens,
                                    int64_t row_halves, float* per_head, int num_heads) {
  for (int64_t t = offsets[num_sequences] + int64_t{blockIdx.x}; t < tokens; t += gridDim.x) {
    for (int64_t i = threadIdx.x; i < row_halves; i += blockDim.x) rows[t * row_halves + i] = 0;
    if (per_head) {
      for (int h = threadIdx.x; h < num_heads; h += blockDim.x) per_head[h * tokens + t] = 0;
    }
  }
}

template <class T, int kDim, int kTiles, bool kDropout>
void launch_forward(Stream& stream, const AttentionParams& p, int most_queries) {
  int64_t blocks = p.tokens * p.group / (64 * kTiles) + p.num_sequences;
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.num_kv_heads));
  constexpr size_t kBytes = forward_shared_bytes<kDim, kTiles>();
  auto kernel = forward_kernel<T, kDim, kTiles, kDropout>;
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
  kernel<<<grid, kThreads, kBytes, native(stream)>>>(p, most_queries);
  SINTER_CUDA_LAUNCHED();
}

template <class T>
void dispatch_forward(Stream& stream, const AttentionParams& p, int64_t max_query, int most_queries) {
  dispatch_head_dim(p.head_dim, p.dropout > 0, [&](auto dim, auto dropout) {
    constexpr int kDim = decltype(dim)::value;
    constexpr bool kDropout = decltype(dropout)::value;
    if constexpr (kDim == 64 && !kDropout) {
      if (max_query * p.group > 64) return launch_forward<T, kDim, 2, kDropout>(stream, p, most_queries);
    }
    launch_forward<T, kDim, 1, kDropout>(stream, p, most_queries);
  });
}

}  // namespace

AttentionParams make_attention_params(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv) {
  SINTER_CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
               "[attention] {} query heads over {} key heads; expected a multiple", shape.num_heads,
               shape.num_kv_heads);
  AttentionParams p{};
  p.qkv = qkv.raw();
  p.offsets = batch.offsets.data<int32_t>();
  p.contexts = batch.contexts.data<int32_t>();
  p.tokens = qkv.size(0);
  p.width = qkv.size(-1);
  p.first_token = shape.first_token;
  p.first_head = shape.first_head;
  p.total_heads = shape.total_heads > 0 ? shape.total_heads : shape.num_heads;
  p.num_sequences = static_cast<int>(batch.num_sequences);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.head_dim = static_cast<int>(shape.head_dim);
  p.group = p.num_heads / p.num_kv_heads;
  // A window as long as any context hides nothing; as a number it may be more than an int holds.
  p.window = shape.window >= batch.max_context ? 0 : static_cast<int>(shape.window);
  p.scale = shape.scale;
  p.dropout = shape.dropout;
  p.keep_factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(shape.dropout)));
  p.key = shape.key;
  p.vector = shape.head_dim % 8 == 0 && is_aligned(p.qkv);
  return p;
}

void set_cache(AttentionParams& p, const AttentionForwardArgs& args) {
  const core::KvLayer& cache = args.cache;
  const bool is_fp8 = cache.keys.dtype() == base::DType::f8e4m3, is_int8 = cache.keys.dtype() == base::DType::i8;
  const bool is_coded = (is_fp8 && cache.key_scales) || is_int8;
  SINTER_CHECK(is_coded ? args.qkv.dtype() != base::DType::f32 : cache.keys.dtype() == args.qkv.dtype(),
               "[attention] a cache in {} for queries in {}: not on CUDA", base::dtype_name(cache.keys.dtype()),
               base::dtype_name(args.qkv.dtype()));
  p.keys = cache.keys.raw();
  p.values = cache.values.raw();
  p.key_scales = is_fp8 ? cache.key_scales.data<float>() : nullptr;
  p.value_scales = is_fp8 ? cache.value_scales.data<float>() : nullptr;
  p.is_int8 = is_int8;
  p.block_stride = cache.block_stride;
  p.head_stride = cache.head_stride;
  p.token_stride = cache.token_stride;
  p.block_tables = args.block_tables.data<int32_t>();
  p.max_blocks = args.block_tables.size(-1);
  p.block_size = static_cast<int>(cache.block_size);
  if (is_int8) return;  // rows are read a number at a time
  const auto multiple = static_cast<int64_t>(16 / base::dtype_bytes(cache.keys.dtype()));
  p.vector = p.vector && is_aligned(p.keys) && is_aligned(p.values) && cache.block_stride % multiple == 0 &&
             cache.head_stride % multiple == 0 && cache.token_stride % multiple == 0;
}

void zero_padding_rows(Stream& stream, const AttentionParams& p, const Tensor& rows, float* per_head) {
  if (p.tokens == 0) return;
  int64_t row_halves = static_cast<int64_t>(rows.bytes() / 2) / p.tokens;
  zero_padding_kernel<<<grid_for(stream, p.tokens, 64, 1), 128, 0, native(stream)>>>(
      p.offsets, p.num_sequences, rows.data<uint16_t>(), p.tokens, row_halves, per_head, p.num_heads);
  SINTER_CUDA_LAUNCHED();
}

void flash_forward(Stream& stream, const AttentionForwardArgs& args) {
  AttentionParams p = make_attention_params(args.shape, *args.batch, args.qkv);
  if (p.tokens == 0 || p.num_sequences == 0) return;
  p.out = args.out.raw();
  p.lse = args.lse.data<float>();
  p.vector = p.vector && is_aligned(p.out);
  if (args.cache) set_cache(p, args);
  const RaggedBatch& batch = *args.batch;
  if (decode_attention(stream, p, args.qkv.dtype(), batch.max_query, batch.max_context)) {
    if (batch.max_query <= kMostDecodeQueries) return;
    p.least_queries = kMostDecodeQueries + 1;
  } else {
    zero_padding_rows(stream, p, args.out, p.lse);
  }
  int most_queries = std::numeric_limits<int>::max();  // others take sequences with more
  if (page_attention(stream, args, p)) {
    if (batch.equal_lengths) return;
    most_queries = kLeastPieceQueries - 1;
  }
  switch (args.qkv.dtype()) {
    case base::DType::f32:
      flash_forward_f32(stream, p);
      return;
    case base::DType::bf16:
      dispatch_forward<bfloat16>(stream, p, batch.max_query, most_queries);
      return;
    case base::DType::f16:
      dispatch_forward<half>(stream, p, batch.max_query, most_queries);
      return;
    default:
      base::fail("[attention] format {} on CUDA; expected f32, bf16 or f16", base::dtype_name(args.qkv.dtype()));
  }
}

}  // namespace sinter::kernels::cuda
