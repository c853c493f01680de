// Attention in f32 by plain arithmetic: exact where the tensor cores would round to TF32. The same walk as the 16-bit
// kernels, forward and backward; made for correctness checks and small models, not for speed.
//
// A block takes 32 rows, 8 warps of 4; a turn brings 32 column rows into shared memory. Lane i scores column i of the
// turn, then every lane sums its own channels over the turn's columns.
#include "kernels/cuda/attention/attention.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kRows = 32, kColumns = 32, kThreads = 256, kWarpRows = 4;
constexpr int kMaxPieces = 8;  // channels a lane holds: heads up to 256

struct Tiles {
  float *x1, *x2, *y1, *y2;
  int stride;  // head_dim + 1: lanes on different rows hit different banks
};

__device__ __forceinline__ Tiles tiles_of(const AttentionParams& p) {
  extern __shared__ __align__(16) float shared_f32[];
  int stride = p.head_dim + 1;
  return {shared_f32, shared_f32 + kRows * stride, shared_f32 + 2 * kRows * stride, shared_f32 + 3 * kRows * stride,
          stride};
}

template <class RowOf>
__device__ __forceinline__ void load_rows(float* tile, int stride, const AttentionParams& p, RowOf&& row_of) {
  for (int r = threadIdx.x / 32; r < kRows; r += kThreads / 32) {
    const float* row = row_of(r);
    for (int d = threadIdx.x % 32; d < p.head_dim; d += 32) tile[r * stride + d] = row ? row[d] : 0.0f;
  }
}
__device__ __forceinline__ float dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}

__global__ void __launch_bounds__(kThreads) forward_kernel(AttentionParams p) {
  Tiles tile = tiles_of(p);
  int64_t block = blockIdx.x;
  int s_index = find_group(p.offsets, p.num_sequences, p.group, kRows, block);
  AttentionSequence s = sequence_at(p, s_index, blockIdx.y);
  int row0 = static_cast<int>(block - tile_start(p.offsets, s_index, p.group, kRows)) * kRows;
  int num_rows = s.queries * p.group;
  if (row0 < 0 || row0 >= num_rows) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int highest = position_of(s, min((row0 + kRows - 1) / p.group, s.queries - 1)),
      lowest = position_of(s, row0 / p.group);
  int first_tile = p.window > 0 ? max(0, lowest - p.window + 1) / kColumns : 0;
  load_rows(tile.x1, tile.stride, p,
            [&](int r) { return row0 + r < num_rows ? query_row<float>(p, s, row0 + r) : nullptr; });

  float out[kWarpRows][kMaxPieces] = {}, largest[kWarpRows], sum[kWarpRows] = {};
  for (float& x : largest) x = -INFINITY;
  for (int t = first_tile; t <= highest / kColumns; ++t) {
    __syncthreads();
    for (int which = 0; which < 2; ++which) {
      load_rows(which == 0 ? tile.y1 : tile.y2, tile.stride, p, [&](int r) {
        int j = t * kColumns + r;
        return j <= highest ? key_row<float>(p, s, j, which) : nullptr;
      });
    }
    __syncthreads();
    int key = t * kColumns + lane;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      int m = row0 + warp * kWarpRows + i;
      bool valid = m < num_rows && sees(p, position_of(s, m / p.group), key);
      float score =
          dot(tile.x1 + (warp * kWarpRows + i) * tile.stride, tile.y1 + lane * tile.stride, p.head_dim) * p.scale;
      score = valid ? score : -INFINITY;
      float top = fmaxf(largest[i], warp_max(score));
      if (top == -INFINITY && !__any_sync(0xffffffffu, isnan(score))) continue;  // fmaxf passes over NaN; we do not
      float shrink = expf(largest[i] - top), e = expf(score - top);
      sum[i] = sum[i] * shrink + warp_sum(e);
      largest[i] = top;
      if (p.dropout > 0 && valid) e *= dropout_factor(p, s, m, key);
#pragma unroll
      for (int c = 0; c < kMaxPieces; ++c) {
        if (c * 32 >= p.head_dim) break;
        int d = min(c * 32 + lane, p.head_dim - 1);
        float value = out[i][c] * shrink;
        for (int j = 0; j < kColumns; ++j) value += __shfl_sync(0xffffffffu, e, j) * tile.y2[j * tile.stride + d];
        out[i][c] = value;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    int m = row0 + warp * kWarpRows + i;
    if (m >= num_rows) continue;
    float* to = const_cast<float*>(out_row<float>(p, p.out, s, m));
#pragma unroll
    for (int c = 0; c < kMaxPieces; ++c) {
      if (c * 32 + lane < p.head_dim) to[c * 32 + lane] = sum[i] == 0 ? 0.0f : out[i][c] / sum[i];
    }
    if (p.lse && lane == 0) {
      int64_t head = s.kv_head * p.group + m % p.group;
      p.lse[head * p.tokens + s.first + m / p.group] = largest[i] + logf(sum[i]);
    }
  }
}

// As backward_kernel of attention_backward.cu.
template <bool kRowsAreKeys>
__global__ void __launch_bounds__(kThreads) backward_kernel(AttentionParams p) {
  Tiles tile = tiles_of(p);
  int scale_rows = kRowsAreKeys ? 1 : p.group;
  int s_index = find_group(p.offsets, p.num_sequences, scale_rows, kRows, blockIdx.x);
  AttentionSequence s = sequence_at(p, s_index, blockIdx.y);
  int row0 = static_cast<int>(blockIdx.x - tile_start(p.offsets, s_index, scale_rows, kRows)) * kRows;
  int queries = s.queries * p.group, num_rows = kRowsAreKeys ? s.queries : queries;
  if (row0 < 0 || row0 >= num_rows) return;
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int last_row = min(row0 + kRows, num_rows) - 1, first_tile, last_tile;
  if constexpr (kRowsAreKeys) {
    int last_query = p.window > 0 ? min(s.queries - 1, last_row + p.window - 1) : s.queries - 1;
    first_tile = row0 * p.group / kColumns;
    last_tile = (last_query * p.group + p.group - 1) / kColumns;
  } else {
    first_tile = p.window > 0 ? max(0, row0 / p.group - p.window + 1) / kColumns : 0;
    last_tile = last_row / p.group / kColumns;
  }
  auto load_queries = [&](float* q, float* d, int m0) {
    load_rows(q, tile.stride, p, [&](int r) { return m0 + r < queries ? query_row<float>(p, s, m0 + r) : nullptr; });
    load_rows(d, tile.stride, p,
              [&](int r) { return m0 + r < queries ? out_row<float>(p, p.dout, s, m0 + r) : nullptr; });
  };
  auto load_keys = [&](float* k, float* v, int j0) {
    load_rows(k, tile.stride, p, [&](int r) { return j0 + r < s.queries ? key_row<float>(p, s, j0 + r, 0) : nullptr; });
    load_rows(v, tile.stride, p, [&](int r) { return j0 + r < s.queries ? key_row<float>(p, s, j0 + r, 1) : nullptr; });
  };
  kRowsAreKeys ? load_keys(tile.x1, tile.x2, row0) : load_queries(tile.x1, tile.x2, row0);
  float first[kWarpRows][kMaxPieces] = {}, second[kWarpRows][kMaxPieces] = {};
  for (int t = first_tile; t <= last_tile; ++t) {
    __syncthreads();
    kRowsAreKeys ? load_queries(tile.y1, tile.y2, t * kColumns) : load_keys(tile.y1, tile.y2, t * kColumns);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      int r = row0 + warp * kWarpRows + i, column = t * kColumns + lane;
      int m = kRowsAreKeys ? column : r, key = kRowsAreKeys ? r : column;
      bool valid = m < queries && key < s.queries && sees(p, m / p.group, key);
      float prob = 0, ds = 0;
      if (valid) {
        int64_t at = (s.kv_head * p.group + m % p.group) * p.tokens + s.first + m / p.group;
        const float *x1 = tile.x1 + (warp * kWarpRows + i) * tile.stride,
                    *x2 = tile.x2 + (warp * kWarpRows + i) * tile.stride;
        float score = dot(x1, tile.y1 + lane * tile.stride, p.head_dim) * p.scale;
        float dp = dot(x2, tile.y2 + lane * tile.stride, p.head_dim);
        float factor = p.dropout > 0 ? dropout_factor(p, s, m, key) : 1.0f;
        prob = expf(score - p.lse[at]);
        ds = prob * (dp * factor - p.delta[at]) * p.scale;
        prob *= factor;
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < kMaxPieces; ++c) {
        if (c * 32 >= p.head_dim) break;
        int d = min(c * 32 + lane, p.head_dim - 1);
        for (int j = 0; j < kColumns; ++j) {
          first[i][c] += __shfl_sync(0xffffffffu, ds, j) * tile.y1[j * tile.stride + d];
          if (kRowsAreKeys) second[i][c] += __shfl_sync(0xffffffffu, prob, j) * tile.y2[j * tile.stride + d];
        }
      }
    }
  }
  auto store = [&](const float* like, const float(&values)[kMaxPieces]) {
    float* to = static_cast<float*>(p.dqkv) + (like - static_cast<const float*>(p.qkv));
#pragma unroll
    for (int c = 0; c < kMaxPieces; ++c) {
      if (c * 32 + lane < p.head_dim) to[c * 32 + lane] = values[c];
    }
  };
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    int r = row0 + warp * kWarpRows + i;
    if (r >= num_rows) continue;
    if constexpr (kRowsAreKeys) {
      store(key_row<float>(p, s, r, 0), first[i]);
      store(key_row<float>(p, s, r, 1), second[i]);
    } else {
      store(query_row<float>(p, s, r), first[i]);
    }
  }
}

template <class Kernel>
void launch(Stream& stream, const AttentionParams& p, Kernel kernel, int64_t rows_per_token) {
  SINTER_CHECK(p.head_dim >= 1 && p.head_dim <= 32 * kMaxPieces, "[attention] head size {} on CUDA; expected 1 to {}",
               p.head_dim, 32 * kMaxPieces);
  size_t bytes = sizeof(float) * 4 * kRows * static_cast<size_t>(p.head_dim + 1);
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  int64_t blocks = p.tokens * rows_per_token / kRows + p.num_sequences;
  dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(p.num_kv_heads));
  kernel<<<grid, kThreads, bytes, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace

void flash_forward_f32(Stream& stream, const AttentionParams& p) { launch(stream, p, forward_kernel, p.group); }

void flash_backward_f32(Stream& stream, const AttentionParams& p) {
  launch(stream, p, backward_kernel<true>, 1);
  launch(stream, p, backward_kernel<false>, p.group);
}

}  // namespace sinter::kernels::cuda
