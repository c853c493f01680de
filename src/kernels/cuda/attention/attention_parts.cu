// Attention to keys and values that lie elsewhere, in parts: plain arithmetic in f32, whatever the format. Made for
// contexts cut over several ranks, where the products beside it take most of the time; tensor cores would be faster.
//
// A block takes 32 rows, 8 warps of 4; a turn brings 32 columns into shared memory. Query heads that share a key head
// are packed into rows: packed row m is query m / G of head (kv head * G + m % G), so that gradients of keys and values
// sum over the group inside one block: no atomics.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kRows = 32, kColumns = 32, kThreads = 256, kWarpRows = 4;
constexpr int kMaxPieces = 8;  // channels a lane holds: heads up to 256
constexpr int kCombineThreads = 128;
constexpr unsigned kAll = 0xffffffffu;

// A tensor whose format is read at run time: out and dout may be other than q.
struct AnyFormat {
  const void* data;
  int bytes;     // 4: f32
  bool is_bf16;  // else f16
  __device__ __forceinline__ float operator[](int64_t i) const {
    if (bytes == 4) return static_cast<const float*>(data)[i];
    return is_bf16 ? to_float(static_cast<const bfloat16*>(data)[i]) : to_float(static_cast<const half*>(data)[i]);
  }
};

struct PartsParams {
  const void *q, *k, *v;               // heads begin here
  int64_t q_width, k_width, v_width;   // elements of a row
  const int32_t *key_begin, *key_end;  // (Tq)
  const int32_t *query_rows, *key_positions;
  int64_t queries, keys;  // Tq, Tk
  int num_heads, num_kv_heads, head_dim, group;
  float scale, dropout, keep_factor;
  RandomKey key;
  int64_t first_token, first_head, total_heads;
  float *out, *lse;                // forward: (Tq, H * D), (H, Tq)
  AnyFormat saved_out, dout;       // backward: (Tq, H * D)
  const float *saved_lse, *delta;  // (H, Tq)
  float *dq, *dk, *dv;
};

__device__ __forceinline__ int64_t query_of(const PartsParams& p, int64_t m) { return m / p.group; }
__device__ __forceinline__ int head_of(const PartsParams& p, int kv_head, int64_t m) {
  return kv_head * p.group + static_cast<int>(m % p.group);
}
__device__ __forceinline__ int64_t begin_of(const PartsParams& p, int64_t t) { return max(p.key_begin[t], 0); }
__device__ __forceinline__ int64_t end_of(const PartsParams& p, int64_t t) {
  return min(int64_t{p.key_end[t]}, p.keys);
}
__device__ __forceinline__ bool sees(const PartsParams& p, int64_t t, int64_t j) {
  return j >= begin_of(p, t) && j < end_of(p, t);
}
// 1 / (1 - p) where a probability is kept, else 0.
__device__ __forceinline__ float dropout_factor(const PartsParams& p, int64_t t, int head, int64_t j) {
  const int64_t row = p.query_rows ? int64_t{p.query_rows[t]} : p.first_token + t;
  const uint64_t first = static_cast<uint64_t>(row * p.total_heads + p.first_head + head)
                         << AttentionShape::kContextBits;
  return random_uniform(p.key, first + p.key_positions[j]) >= p.dropout ? p.keep_factor : 0.0f;
}

// The keys that any of the packed rows [m0, m0 + kRows) sees: warp 0's lanes look at a row each.
__device__ __forceinline__ void key_range(const PartsParams& p, int64_t m0, int64_t num_rows, int64_t* range) {
  if (threadIdx.x < 32) {
    const int64_t m = m0 + threadIdx.x;
    int64_t begin = p.keys, end = 0;
    if (m < num_rows) {
      begin = begin_of(p, query_of(p, m));
      end = end_of(p, query_of(p, m));
      if (begin >= end) begin = p.keys, end = 0;
    }
#pragma unroll
    for (int step = 16; step > 0; step >>= 1) {
      begin = min(begin, static_cast<int64_t>(__shfl_xor_sync(kAll, static_cast<long long>(begin), step)));
      end = max(end, static_cast<int64_t>(__shfl_xor_sync(kAll, static_cast<long long>(end), step)));
    }
    if (threadIdx.x == 0) range[0] = begin, range[1] = end;
  }
  __syncthreads();
}

// Fills a (kRows, head_dim) tile of f32 from read(r, d), which gives 0 for rows that are not there.
template <class Read>
__device__ __forceinline__ void fill_tile(float* tile, int stride, int head_dim, Read&& read) {
  for (int r = threadIdx.x / 32; r < kRows; r += kThreads / 32) {
    for (int d = threadIdx.x % 32; d < head_dim; d += 32) tile[r * stride + d] = read(r, d);
  }
}
template <class T>
__device__ __forceinline__ void fill_keys(float* tile, int stride, const PartsParams& p, const void* from,
                                          int64_t width, int kv_head, int64_t j0) {
  const T* base = static_cast<const T*>(from) + int64_t{kv_head} * p.head_dim;
  fill_tile(tile, stride, p.head_dim,
            [&](int r, int d) { return j0 + r < p.keys ? to_float(base[(j0 + r) * width + d]) : 0.0f; });
}
template <class T>
__device__ __forceinline__ void fill_queries(float* tile, int stride, const PartsParams& p, int kv_head, int64_t m0,
                                             int64_t num_rows) {
  const T* base = static_cast<const T*>(p.q);
  fill_tile(tile, stride, p.head_dim, [&](int r, int d) {
    const int64_t m = m0 + r;
    if (m >= num_rows) return 0.0f;
    return to_float(base[query_of(p, m) * p.q_width + int64_t{head_of(p, kv_head, m)} * p.head_dim + d]);
  });
}
__device__ __forceinline__ int64_t out_row(const PartsParams& p, int kv_head, int64_t m) {
  return (query_of(p, m) * p.num_heads + head_of(p, kv_head, m)) * p.head_dim;
}
__device__ __forceinline__ float dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int d = 0; d < count; ++d) sum += a[d] * b[d];
  return sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads) forward_kernel(PartsParams p) {
  extern __shared__ __align__(16) float tiles[];
  __shared__ int64_t range[2];
  const int stride = p.head_dim + 1;  // lanes on different rows hit different banks
  float *q = tiles, *k = q + kRows * stride, *v = k + kColumns * stride;
  const int kv_head = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t m0 = int64_t{blockIdx.x} * kRows, num_rows = p.queries * p.group;
  key_range(p, m0, num_rows, range);
  fill_queries<T>(q, stride, p, kv_head, m0, num_rows);
  float out[kWarpRows][kMaxPieces] = {}, largest[kWarpRows], sum[kWarpRows] = {};
  for (float& x : largest) x = -INFINITY;
  for (int64_t j0 = range[0] / kColumns * kColumns; j0 < range[1]; j0 += kColumns) {
    __syncthreads();
    fill_keys<T>(k, stride, p, p.k, p.k_width, kv_head, j0);
    fill_keys<T>(v, stride, p, p.v, p.v_width, kv_head, j0);
    __syncthreads();
    const int64_t j = j0 + lane;
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int64_t m = m0 + warp * kWarpRows + i;
      const bool valid = m < num_rows && sees(p, query_of(p, m), j);
      float score = dot(q + (warp * kWarpRows + i) * stride, k + lane * stride, p.head_dim) * p.scale;
      score = valid ? score : -INFINITY;
      const float top = fmaxf(largest[i], warp_max(score));
      if (top == -INFINITY && !__any_sync(kAll, isnan(score))) continue;  // fmaxf passes over NaN; we do not
      const float shrink = expf(largest[i] - top);
      float e = expf(score - top);
      sum[i] = sum[i] * shrink + warp_sum(e);
      largest[i] = top;
      if (p.dropout > 0 && valid) e *= dropout_factor(p, query_of(p, m), head_of(p, kv_head, m), j);
#pragma unroll
      for (int c = 0; c < kMaxPieces; ++c) {
        if (c * 32 >= p.head_dim) break;
        const int d = min(c * 32 + lane, p.head_dim - 1);
        float value = out[i][c] * shrink;
        for (int x = 0; x < kColumns; ++x) value += __shfl_sync(kAll, e, x) * v[x * stride + d];
        out[i][c] = value;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    const int64_t m = m0 + warp * kWarpRows + i;
    if (m >= num_rows) continue;
    float* to = p.out + out_row(p, kv_head, m);
#pragma unroll
    for (int c = 0; c < kMaxPieces; ++c) {
      if (c * 32 + lane < p.head_dim) to[c * 32 + lane] = sum[i] == 0 ? 0.0f : out[i][c] / sum[i];
    }
    if (lane == 0)
      p.lse[head_of(p, kv_head, m) * p.queries + query_of(p, m)] = sum[i] == 0 ? -INFINITY : largest[i] + logf(sum[i]);
  }
}

// A warp a (query, head).
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const float* part, const float* part_lse, float* out, float* lse, int64_t queries, int heads,
                   int head_dim) {
  const int64_t task = (int64_t{blockIdx.x} * kCombineThreads + threadIdx.x) / 32;
  if (task >= queries * heads) return;
  const int64_t t = task / heads, h = task % heads, at = h * queries + t;
  const float a = lse[at], b = part_lse[at], largest = fmaxf(a, b);
  if (largest == -INFINITY) return;
  const float joined = largest + logf(expf(a - largest) + expf(b - largest));
  const float of_a = expf(a - joined), of_b = expf(b - joined);
  for (int64_t d = threadIdx.x % 32; d < head_dim; d += 32) {
    const int64_t i = task * head_dim + d;
    out[i] = of_a * out[i] + of_b * part[i];
  }
  __syncwarp();  // all have read lse
  if (threadIdx.x % 32 == 0) lse[at] = joined;
}

// delta[h][t] = the sum over d of dout * out. A warp a (query, head).
__global__ void __launch_bounds__(kCombineThreads)
    delta_kernel(AnyFormat out, AnyFormat dout, float* delta, int64_t queries, int heads, int head_dim) {
  const int64_t task = (int64_t{blockIdx.x} * kCombineThreads + threadIdx.x) / 32;
  if (task >= queries * heads) return;
  float sum = 0;
  for (int64_t d = threadIdx.x % 32; d < head_dim; d += 32) sum += dout[task * head_dim + d] * out[task * head_dim + d];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) delta[task % heads * queries + task / heads] = sum;
}

// Rows are keys: dk += ds^T q, dv += p^T dout. Rows are queries: dq += ds k.
template <class T, bool kRowsAreKeys>
__global__ void __launch_bounds__(kThreads) backward_kernel(PartsParams p) {
  extern __shared__ __align__(16) float tiles[];
  __shared__ int64_t range[2];
  const int stride = p.head_dim + 1;
  float *x1 = tiles, *x2 = x1 + kRows * stride, *y1 = x2 + kRows * stride, *y2 = y1 + kColumns * stride;
  const int kv_head = static_cast<int>(blockIdx.y), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row0 = int64_t{blockIdx.x} * kRows, queries = p.queries * p.group;
  const int64_t num_rows = kRowsAreKeys ? p.keys : queries;
  auto load_queries = [&](float* q, float* d_out, int64_t m0) {
    fill_queries<T>(q, stride, p, kv_head, m0, queries);
    fill_tile(d_out, stride, p.head_dim,
              [&](int r, int d) { return m0 + r < queries ? p.dout[out_row(p, kv_head, m0 + r) + d] : 0.0f; });
  };
  auto load_keys = [&](float* k, float* v, int64_t j0) {
    fill_keys<T>(k, stride, p, p.k, p.k_width, kv_head, j0);
    fill_keys<T>(v, stride, p, p.v, p.v_width, kv_head, j0);
  };
  int64_t first = 0, last = queries;
  if constexpr (kRowsAreKeys) {
    load_keys(x1, x2, row0);
  } else {
    key_range(p, row0, queries, range);
    first = range[0] / kColumns * kColumns, last = range[1];
    load_queries(x1, x2, row0);
  }
  float sum1[kWarpRows][kMaxPieces] = {}, sum2[kWarpRows][kMaxPieces] = {};
  for (int64_t c0 = first; c0 < last; c0 += kColumns) {
    __syncthreads();
    if constexpr (kRowsAreKeys) {
      key_range(p, c0, queries, range);
      const bool is_seen = range[0] < row0 + kRows && range[1] > row0;
      __syncthreads();  // the next turn writes the range
      if (!is_seen) continue;
      load_queries(y1, y2, c0);
    } else {
      load_keys(y1, y2, c0);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarpRows; ++i) {
      const int64_t row = row0 + warp * kWarpRows + i, column = c0 + lane;
      const int64_t m = kRowsAreKeys ? column : row, j = kRowsAreKeys ? row : column;
      float prob = 0, ds = 0;
      if (m < queries && j < p.keys && sees(p, query_of(p, m), j)) {
        const int64_t t = query_of(p, m);
        const int head = head_of(p, kv_head, m);
        const float *a = x1 + (warp * kWarpRows + i) * stride, *b = x2 + (warp * kWarpRows + i) * stride;
        const float score = dot(a, y1 + lane * stride, p.head_dim) * p.scale;
        const float dp = dot(b, y2 + lane * stride, p.head_dim);
        const float factor = p.dropout > 0 ? dropout_factor(p, t, head, j) : 1.0f;
        prob = expf(score - p.saved_lse[head * p.queries + t]);
        ds = prob * (dp * factor - p.delta[head * p.queries + t]) * p.scale;
        prob *= factor;
      }
      __syncwarp();
#pragma unroll
      for (int c = 0; c < kMaxPieces; ++c) {
        if (c * 32 >= p.head_dim) break;
        const int d = min(c * 32 + lane, p.head_dim - 1);
        for (int x = 0; x < kColumns; ++x) {
          sum1[i][c] += __shfl_sync(kAll, ds, x) * y1[x * stride + d];
          if (kRowsAreKeys) sum2[i][c] += __shfl_sync(kAll, prob, x) * y2[x * stride + d];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kWarpRows; ++i) {
    const int64_t row = row0 + warp * kWarpRows + i;
    if (row >= num_rows) continue;
    const int64_t key_at = (row * p.num_kv_heads + kv_head) * p.head_dim;
#pragma unroll
    for (int c = 0; c < kMaxPieces; ++c) {
      const int d = c * 32 + lane;
      if (d >= p.head_dim) continue;
      if constexpr (kRowsAreKeys) {
        p.dk[key_at + d] += sum1[i][c];
        p.dv[key_at + d] += sum2[i][c];
      } else {
        p.dq[out_row(p, kv_head, row) + d] += sum1[i][c];
      }
    }
  }
}

PartsParams make_params(const AttentionParts& a) {
  const AttentionShape& shape = a.shape;
  SINTER_CHECK(shape.head_dim >= 1 && shape.head_dim <= 32 * kMaxPieces,
               "[attention] head size {} on CUDA; expected 1 to {}", shape.head_dim, 32 * kMaxPieces);
  SINTER_CHECK(a.q.dtype() == a.k.dtype() && a.q.dtype() == a.v.dtype(), "[attention] queries in {}, keys in {}",
               base::dtype_name(a.q.dtype()), base::dtype_name(a.k.dtype()));
  const auto element = static_cast<int64_t>(base::dtype_bytes(a.q.dtype()));
  PartsParams p{};
  p.q = static_cast<const char*>(a.q.raw()) + a.q_column * element;
  p.k = static_cast<const char*>(a.k.raw()) + a.k_column * element;
  p.v = static_cast<const char*>(a.v.raw()) + a.v_column * element;
  p.q_width = a.q.size(-1), p.k_width = a.k.size(-1), p.v_width = a.v.size(-1);
  p.key_begin = a.key_begin.data<int32_t>(), p.key_end = a.key_end.data<int32_t>();
  p.query_rows = a.query_rows.data<int32_t>(), p.key_positions = a.key_positions.data<int32_t>();
  p.queries = a.q.size(0), p.keys = a.k.size(0);
  p.num_heads = static_cast<int>(shape.num_heads), p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.head_dim = static_cast<int>(shape.head_dim), p.group = p.num_heads / p.num_kv_heads;
  p.scale = shape.scale, p.dropout = shape.dropout, p.key = shape.key;
  p.keep_factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(shape.dropout)));
  p.first_token = shape.first_token, p.first_head = shape.first_head;
  p.total_heads = shape.total_heads > 0 ? shape.total_heads : shape.num_heads;
  return p;
}
AnyFormat any_format(const Tensor& x) {
  return {x.raw(), static_cast<int>(base::dtype_bytes(x.dtype())), x.dtype() == base::DType::bf16};
}

void launch(Stream& stream, const PartsParams& p, void (*kernel)(PartsParams), int64_t rows, int tiles) {
  if (rows == 0) return;
  const size_t bytes = sizeof(float) * static_cast<size_t>(tiles * kRows * (p.head_dim + 1));
  SINTER_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
  const dim3 grid(static_cast<unsigned>(div_up(rows, kRows)), static_cast<unsigned>(p.num_kv_heads));
  kernel<<<grid, kThreads, bytes, native(stream)>>>(p);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace

void attention_partial_forward(Stream& stream, const AttentionPartialForwardArgs& args) {
  PartsParams p = make_params(args.parts);
  p.out = args.out.data<float>(), p.lse = args.lse.data<float>();
  dispatch_format(args.parts.q.dtype(), "attention_partial_forward",
                  [&]<class T>(TypeTag<T>) { launch(stream, p, forward_kernel<T>, p.queries * p.group, 3); });
}

void attention_combine(Stream& stream, const AttentionCombineArgs& args) {
  const int64_t heads = args.lse.size(0), queries = args.lse.size(1), tasks = heads * queries;
  if (tasks == 0) return;
  combine_kernel<<<static_cast<unsigned>(div_up(tasks * 32, kCombineThreads)), kCombineThreads, 0, native(stream)>>>(
      args.part.data<float>(), args.part_lse.data<float>(), args.out.data<float>(), args.lse.data<float>(), queries,
      static_cast<int>(heads), static_cast<int>(args.out.size(-1) / heads));
  SINTER_CUDA_LAUNCHED();
}

void attention_partial_backward(Stream& stream, const AttentionPartialBackwardArgs& args) {
  PartsParams p = make_params(args.parts);
  const int64_t tasks = p.queries * p.num_heads;
  if (tasks == 0 || p.keys == 0) return;
  auto* delta = static_cast<float*>(scratch(stream, Scratch::attention, sizeof(float) * static_cast<size_t>(tasks)));
  p.saved_out = any_format(args.out), p.dout = any_format(args.dout);
  p.saved_lse = args.lse.data<float>(), p.delta = delta;
  p.dq = args.dq.data<float>(), p.dk = args.dk.data<float>(), p.dv = args.dv.data<float>();
  delta_kernel<<<static_cast<unsigned>(div_up(tasks * 32, kCombineThreads)), kCombineThreads, 0, native(stream)>>>(
      p.saved_out, p.dout, delta, p.queries, p.num_heads, p.head_dim);
  SINTER_CUDA_LAUNCHED();
  dispatch_format(args.parts.q.dtype(), "attention_partial_backward", [&]<class T>(TypeTag<T>) {
    launch(stream, p, backward_kernel<T, true>, p.keys, 4);
    launch(stream, p, backward_kernel<T, false>, p.queries * p.group, 4);
  });
}

}  // namespace sinter::kernels::cuda
