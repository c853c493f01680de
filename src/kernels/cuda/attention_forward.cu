// Flash attention forward on tensor cores (mma.sync), for every case of the table: ragged sequences, sliding windows,
// grouped heads, paged keys, dropout. f32 goes to attention_f32.cu.
#include "kernels/cuda/attention.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kRows = 64;  // packed queries of a tile: 16 a warp
constexpr int kKeys = 64;
constexpr int kThreads = 128;
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

template <int kDim>
constexpr size_t forward_shared_bytes() {
  return sizeof(uint16_t) * (kRows + 2 * kKeys) * (kDim + kPad);
}

// Walks the keys in tiles counted from the sequence's start, so a row's result does not depend on the rest of the batch.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  constexpr int kStride = kDim + kPad;
  T* q_tile = reinterpret_cast<T*>(shared);
  T* k_tile = q_tile + kRows * kStride;
  T* v_tile = k_tile + kKeys * kStride;

  int64_t block = int64_t{gridDim.x} - 1 - blockIdx.x;  // long rows of a causal batch first
  int s_index = find_group(p.offsets, p.num_sequences, p.group, kRows, block);
  AttentionSequence s = sequence_at(p, s_index, blockIdx.y);
  int row0 = static_cast<int>(block - tile_start(p.offsets, s_index, p.group, kRows)) * kRows;
  int num_rows = s.queries * p.group;
  if (row0 >= num_rows || row0 < 0) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  int last_query = min((row0 + kRows - 1) / p.group, s.queries - 1);
  int lowest = position_of(s, row0 / p.group), highest = position_of(s, last_query);
  int first_tile = p.window > 0 ? max(0, lowest - p.window + 1) / kKeys : 0, last_tile = highest / kKeys;

  auto load_keys = [&](T* tile, int t, int which) {
    load_tile<T, kKeys, kDim, kThreads>(tile, p, [&](int r) {
      int j = t * kKeys + r;
      return j <= highest ? key_row<T>(p, s, j, which) : nullptr;
    });
    copy_commit();
  };
  load_tile<T, kRows, kDim, kThreads>(
      q_tile, p, [&](int r) { return row0 + r < num_rows ? query_row<T>(p, s, row0 + r) : nullptr; });
  load_keys(k_tile, first_tile, 0);

  // This thread's rows of the tile, and their places in the sequence.
  int m[2] = {row0 + warp * 16 + lane / 4, row0 + warp * 16 + lane / 4 + 8};
  int position[2] = {position_of(s, m[0] / p.group), position_of(s, m[1] / p.group)};
  float out[kDim / 8][4] = {};
  float largest[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  float scale2 = p.scale * kLog2e;

  for (int t = first_tile; t <= last_tile; ++t) {
    copy_wait<0>();
    __syncthreads();  // keys are here; the values of the last turn are no longer read
    load_keys(v_tile, t, 1);

    float score[kKeys / 8][4] = {};
#pragma unroll
    for (int k = 0; k < kDim; k += 16) {
      uint32_t a[4];
      load_a(a, q_tile, kStride, warp * 16, k, lane);
#pragma unroll
      for (int n = 0; n < kKeys; n += 16) {
        uint32_t b[4];
        load_b(b, k_tile, kStride, n, k, lane);
        mma_16x8x16<T>(score[n / 8], a, b[0], b[1]);
        mma_16x8x16<T>(score[n / 8 + 1], a, b[2], b[3]);
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
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          int key = t * kKeys + n * 8 + lane % 4 * 2 + i % 2;
          if (!sees(p, position[i / 2], key)) score[n][i] = -INFINITY;
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = largest[h];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(score[n][2 * h], score[n][2 * h + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      float base = top == -INFINITY ? 0.0f : top * scale2;
      float shrink = exp2f(largest[h] * scale2 - base);  // 0 for a first tile
      largest[h] = top;
      sum[h] *= shrink;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        out[d][2 * h] *= shrink;
        out[d][2 * h + 1] *= shrink;
      }
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          float e = exp2f(score[n][2 * h + i] * scale2 - base);
          sum[h] += e;
          score[n][2 * h + i] = e;
        }
      }
    }
    if (p.dropout > 0) {
#pragma unroll 1
      for (int n = 0; n < kKeys / 8; ++n) {
        int key = t * kKeys + n * 8 + lane % 4 * 2;
        float factor[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) factor[i] = dropout_factor(p, s, m[i / 2], key + i % 2);
#pragma unroll
        for (int c = 0; c < kKeys / 8; ++c) {  // a register array takes only constant indices
          if (c == n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) score[c][i] *= factor[i];
          }
        }
      }
    }
    copy_wait<1>();
    __syncthreads();  // values are here
#pragma unroll
    for (int k = 0; k < kKeys; k += 16) {
      uint32_t a[4] = {pack<T>(score[k / 8][0], score[k / 8][1]), pack<T>(score[k / 8][2], score[k / 8][3]),
                       pack<T>(score[k / 8 + 1][0], score[k / 8 + 1][1]), pack<T>(score[k / 8 + 1][2], score[k / 8 + 1][3])};
#pragma unroll
      for (int n = 0; n < kDim; n += 16) {
        uint32_t b[4];
        load_b_transposed(b, v_tile, kStride, n, k, lane);
        mma_16x8x16<T>(out[n / 8], a, b[0], b[1]);
        mma_16x8x16<T>(out[n / 8 + 1], a, b[2], b[3]);
      }
    }
  }
  copy_wait<0>();

#pragma unroll
  for (int h = 0; h < 2; ++h) {
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
    sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
    if (m[h] >= num_rows) continue;
    float inverse = sum[h] > 0 ? 1.0f / sum[h] : 0.0f;
    T* to = const_cast<T*>(out_row<T>(p, p.out, s, m[h]));
#pragma unroll
    for (int d = 0; d < kDim / 8; ++d) {
      int column = d * 8 + lane % 4 * 2;
      float low = out[d][2 * h] * inverse, high = out[d][2 * h + 1] * inverse;
      if (p.vector) {
        if (column < p.head_dim) *reinterpret_cast<uint32_t*>(to + column) = pack<T>(low, high);
      } else {
        if (column < p.head_dim) to[column] = from_float<T>(low);
        if (column + 1 < p.head_dim) to[column + 1] = from_float<T>(high);
      }
    }
    if (p.lse && lane % 4 == 0) {
      int64_t head = s.kv_head * p.group + m[h] % p.group;
      p.lse[head * p.tokens + s.first + m[h] / p.group] = largest[h] * p.scale + log2f(sum[h]) * kLn2;
    }
  }
}

__global__ void zero_padding_kernel(const int32_t* offsets, int num_sequences, uint16_t* rows, int64_t tokens, int64_t row_halves,
                                    float* per_head, int num_heads) {
  for (int64_t t = offsets[num_sequences] + int64_t{blockIdx.x}; t < tokens; t += gridDim.x) {
    for (int64_t i = threadIdx.x; i < row_halves; i += blockDim.x) rows[t * row_halves + i] = 0;
    if (per_head) {
      for (int h = threadIdx.x; h < num_heads; h += blockDim.x) per_head[h * tokens + t] = 0;
    }
  }
}

template <class T>
void launch_forward(Stream& stream, const AttentionParams& p) {
  int64_t blocks = p.tokens * p.group / kRows + p.num_sequences;
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.num_kv_heads));
  dispatch_head_dim(p.head_dim, [&](auto dim) {
    constexpr int kDim = decltype(dim)::value;
    constexpr size_t kBytes = forward_shared_bytes<kDim>();
    SINTER_CUDA_CHECK(cudaFuncSetAttribute(forward_kernel<T, kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes));
    forward_kernel<T, kDim><<<grid, kThreads, kBytes, native(stream)>>>(p);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace

AttentionParams make_attention_params(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv) {
  SINTER_CHECK(shape.num_kv_heads > 0 && shape.num_heads % shape.num_kv_heads == 0,
               "[attention] {} query heads over {} key heads; expected a multiple", shape.num_heads, shape.num_kv_heads);
  AttentionParams p{};
  p.qkv = qkv.raw();
  p.offsets = batch.offsets.data<int32_t>();
  p.contexts = batch.contexts.data<int32_t>();
  p.tokens = qkv.size(0);
  p.width = qkv.size(-1);
  p.max_context = batch.max_context;
  p.num_sequences = static_cast<int>(batch.num_sequences);
  p.num_heads = static_cast<int>(shape.num_heads);
  p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.head_dim = static_cast<int>(shape.head_dim);
  p.group = p.num_heads / p.num_kv_heads;
  p.window = static_cast<int>(shape.window);
  p.scale = shape.scale;
  p.dropout = shape.dropout;
  p.keep_factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(shape.dropout)));
  p.key = shape.key;
  p.vector = shape.head_dim % 8 == 0 && is_aligned(p.qkv);
  return p;
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
  if (args.layer_keys) {
    p.keys = args.layer_keys.raw();
    p.values = args.layer_values.raw();
    p.block_tables = args.block_tables.data<int32_t>();
    p.max_blocks = args.block_tables.size(-1);
    p.block_size = static_cast<int>(args.layer_keys.size(1));
    p.vector = p.vector && is_aligned(p.keys) && is_aligned(p.values);
  }
  zero_padding_rows(stream, p, args.out, p.lse);
  switch (args.qkv.dtype()) {
    case base::DType::f32: flash_forward_f32(stream, p); return;
    case base::DType::bf16: launch_forward<bfloat16>(stream, p); return;
    case base::DType::f16: launch_forward<half>(stream, p); return;
    default: base::fail("[attention] format {} on CUDA; expected f32, bf16 or f16", base::dtype_name(args.qkv.dtype()));
  }
}

}  // namespace sinter::kernels::cuda
