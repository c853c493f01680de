// Attention to keys and values that lie elsewhere, in parts: plain arithmetic in f32, a warp for each row of the
// result. A lane has every 32nd number of a head. No atomics: sums run in the order of keys, or of queries.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kMostPieces = 8;  // numbers of a head in a lane: heads up to 256

struct PartsParams {
  const void *q, *k, *v;
  const int32_t *key_begin, *key_end, *query_rows, *key_positions;
  int64_t q_width, k_width, v_width, q_column, k_column, v_column;
  int64_t queries, keys;
  int num_heads, num_kv_heads, head_dim, group;
  float scale, dropout, keep_factor;
  RandomKey key;
  int64_t first_token, first_head, total_heads;
};

PartsParams params_of(const AttentionParts& parts) {
  const AttentionShape& shape = parts.shape;
  SINTER_CHECK(shape.head_dim <= 32 * kMostPieces, "[attention] head size {} in parts on CUDA; expected at most {}",
               shape.head_dim, 32 * kMostPieces);
  SINTER_CHECK(parts.q.dtype() == parts.k.dtype() && parts.q.dtype() == parts.v.dtype(),
               "[attention] queries in {}, keys in {}, values in {}; expected one format",
               base::dtype_name(parts.q.dtype()), base::dtype_name(parts.k.dtype()), base::dtype_name(parts.v.dtype()));
  PartsParams p{};
  p.q = parts.q.raw(), p.k = parts.k.raw(), p.v = parts.v.raw();
  p.key_begin = parts.key_begin.data<int32_t>(), p.key_end = parts.key_end.data<int32_t>();
  p.query_rows = parts.query_rows.data<int32_t>(), p.key_positions = parts.key_positions.data<int32_t>();
  p.q_width = parts.q.size(-1), p.k_width = parts.k.size(-1), p.v_width = parts.v.size(-1);
  p.q_column = parts.q_column, p.k_column = parts.k_column, p.v_column = parts.v_column;
  p.queries = parts.q.size(0), p.keys = parts.k.size(0);
  p.num_heads = static_cast<int>(shape.num_heads), p.num_kv_heads = static_cast<int>(shape.num_kv_heads);
  p.head_dim = static_cast<int>(shape.head_dim), p.group = p.num_heads / p.num_kv_heads;
  p.scale = shape.scale, p.dropout = shape.dropout, p.key = shape.key;
  p.keep_factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(shape.dropout)));
  p.first_token = shape.first_token, p.first_head = shape.first_head;
  p.total_heads = shape.total_heads > 0 ? shape.total_heads : shape.num_heads;
  return p;
}

// Numbers of a head, 0 past its end.
struct Row {
  float x[kMostPieces] = {};
};

template <class T>
__device__ __forceinline__ Row load_row(const void* from, int64_t first, int dim, int lane) {
  Row row;
#pragma unroll
  for (int i = 0; i < kMostPieces; ++i) {
    const int d = i * 32 + lane;
    if (d < dim) row.x[i] = to_float(static_cast<const T*>(from)[first + d]);
  }
  return row;
}
__device__ __forceinline__ Row load_any(const void* from, base::DType dtype, int64_t first, int dim, int lane) {
  if (dtype == base::DType::f32) return load_row<float>(from, first, dim, lane);
  if (dtype == base::DType::bf16) return load_row<bfloat16>(from, first, dim, lane);
  return load_row<half>(from, first, dim, lane);
}
__device__ __forceinline__ float dot(const Row& a, const Row& b) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMostPieces; ++i) sum += a.x[i] * b.x[i];
  return warp_sum(sum);
}
__device__ __forceinline__ void add_scaled(Row& to, const Row& from, float factor) {
#pragma unroll
  for (int i = 0; i < kMostPieces; ++i) to.x[i] += factor * from.x[i];
}
__device__ __forceinline__ void store_row(float* to, const Row& row, float factor, bool adds, int dim, int lane) {
#pragma unroll
  for (int i = 0; i < kMostPieces; ++i) {
    const int d = i * 32 + lane;
    if (d < dim) to[d] = adds ? to[d] + factor * row.x[i] : factor * row.x[i];
  }
}

template <class T>
__device__ __forceinline__ Row query_of(const PartsParams& p, int64_t t, int head, int lane) {
  return load_row<T>(p.q, t * p.q_width + p.q_column + int64_t{head} * p.head_dim, p.head_dim, lane);
}
template <class T>
__device__ __forceinline__ Row key_of(const PartsParams& p, int64_t j, int kv_head, int lane) {
  return load_row<T>(p.k, j * p.k_width + p.k_column + int64_t{kv_head} * p.head_dim, p.head_dim, lane);
}
template <class T>
__device__ __forceinline__ Row value_of(const PartsParams& p, int64_t j, int kv_head, int lane) {
  return load_row<T>(p.v, j * p.v_width + p.v_column + int64_t{kv_head} * p.head_dim, p.head_dim, lane);
}
__device__ __forceinline__ int64_t begin_of(const PartsParams& p, int64_t t) { return max(0, p.key_begin[t]); }
__device__ __forceinline__ int64_t end_of(const PartsParams& p, int64_t t) {
  return min(p.keys, static_cast<int64_t>(p.key_end[t]));
}

// 1 / (1 - p) where a probability is kept, else 0.
__device__ __forceinline__ float kept(const PartsParams& p, int64_t t, int64_t j, int head) {
  if (p.dropout == 0) return 1.0f;
  const int64_t row = p.query_rows ? p.query_rows[t] : p.first_token + t;
  const uint64_t index =
      (static_cast<uint64_t>(row * p.total_heads + p.first_head + head) << AttentionShape::kContextBits) +
      static_cast<uint64_t>(p.key_positions[j]);
  return random_uniform(p.key, index) >= p.dropout ? p.keep_factor : 0.0f;
}

// The warp's task of so many; false: there is none left.
__device__ __forceinline__ bool find_task(int64_t tasks, int64_t& task) {
  task = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  return task < tasks;
}

template <class T>
__global__ void __launch_bounds__(kThreads) partial_forward_kernel(PartsParams p, float* out, float* lse) {
  int64_t task;
  if (!find_task(p.queries * p.num_heads, task)) return;
  const int64_t t = task / p.num_heads;
  const int head = static_cast<int>(task % p.num_heads), kv_head = head / p.group, lane = threadIdx.x % 32;
  const Row q = query_of<T>(p, t, head, lane);
  Row sum;
  float largest = -INFINITY, total = 0;
  for (int64_t j = begin_of(p, t); j < end_of(p, t); ++j) {
    const float score = dot(q, key_of<T>(p, j, kv_head, lane)) * p.scale;
    const float top = fmaxf(largest, score);
    if (top == -INFINITY) continue;
    const float shrink = expf(largest - top), e = expf(score - top);
    largest = top;
    total = total * shrink + e;
#pragma unroll
    for (float& x : sum.x) x *= shrink;
    add_scaled(sum, value_of<T>(p, j, kv_head, lane), e * kept(p, t, j, head));
  }
  store_row(out + task * p.head_dim, sum, total > 0 ? 1.0f / total : 0.0f, false, p.head_dim, lane);
  if (lane == 0) lse[head * p.queries + t] = total > 0 ? largest + logf(total) : -INFINITY;
}

__global__ void __launch_bounds__(kThreads) combine_kernel(const float* part, const float* part_lse, float* out,
                                                           float* lse, int64_t queries, int num_heads, int dim) {
  int64_t task;
  if (!find_task(queries * num_heads, task)) return;
  const int64_t t = task / num_heads, at = task % num_heads * queries + t;
  const int lane = threadIdx.x % 32;
  const float a = lse[at], b = part_lse[at], largest = fmaxf(a, b);
  __syncwarp();  // every lane has read what the first one writes
  if (largest == -INFINITY) return;
  const float joined = largest + logf(expf(a - largest) + expf(b - largest));
  const float own = expf(a - joined), other = expf(b - joined);
  for (int d = lane; d < dim; d += 32) out[task * dim + d] = own * out[task * dim + d] + other * part[task * dim + d];
  if (lane == 0) lse[at] = joined;
}

struct BackwardParams {
  const void *out, *dout;
  base::DType out_format, dout_format;
  const float* lse;
  float *delta, *dq, *dk, *dv;
};

// dq of a query's head, and delta = dout . out for the other kernel.
template <class T>
__global__ void __launch_bounds__(kThreads) partial_dq_kernel(PartsParams p, BackwardParams b) {
  int64_t task;
  if (!find_task(p.queries * p.num_heads, task)) return;
  const int64_t t = task / p.num_heads;
  const int head = static_cast<int>(task % p.num_heads), kv_head = head / p.group, lane = threadIdx.x % 32;
  const Row dout = load_any(b.dout, b.dout_format, task * p.head_dim, p.head_dim, lane);
  const float delta = dot(dout, load_any(b.out, b.out_format, task * p.head_dim, p.head_dim, lane));
  if (lane == 0) b.delta[task] = delta;
  const Row q = query_of<T>(p, t, head, lane);
  const float log_sum = b.lse[head * p.queries + t];
  Row dq;
  for (int64_t j = begin_of(p, t); j < end_of(p, t); ++j) {
    const Row key = key_of<T>(p, j, kv_head, lane);
    const float probability = expf(dot(q, key) * p.scale - log_sum);
    const float dp = dot(dout, value_of<T>(p, j, kv_head, lane));
    add_scaled(dq, key, probability * (dp * kept(p, t, j, head) - delta) * p.scale);
  }
  store_row(b.dq + task * p.head_dim, dq, 1.0f, true, p.head_dim, lane);
}

// dk and dv of a key's head: over all queries that see it, 32 looked at together, heads that share it in turn.
template <class T>
__global__ void __launch_bounds__(kThreads) partial_dkv_kernel(PartsParams p, BackwardParams b) {
  int64_t task;
  if (!find_task(p.keys * p.num_kv_heads, task)) return;
  const int64_t j = task / p.num_kv_heads;
  const int kv_head = static_cast<int>(task % p.num_kv_heads), lane = threadIdx.x % 32;
  const Row key = key_of<T>(p, j, kv_head, lane), value = value_of<T>(p, j, kv_head, lane);
  Row dk, dv;
  for (int64_t first = 0; first < p.queries; first += 32) {
    const int64_t own = first + lane;
    const bool sees = own < p.queries && j >= begin_of(p, own) && j < end_of(p, own);
    for (unsigned left = __ballot_sync(0xffffffffu, sees); left != 0; left &= left - 1) {
      const int64_t t = first + __ffs(static_cast<int>(left)) - 1;
      for (int g = 0; g < p.group; ++g) {
        const int head = kv_head * p.group + g;
        const int64_t row = t * p.num_heads + head;
        const Row q = query_of<T>(p, t, head, lane);
        const Row dout = load_any(b.dout, b.dout_format, row * p.head_dim, p.head_dim, lane);
        const float probability = expf(dot(q, key) * p.scale - b.lse[head * p.queries + t]);
        const float factor = kept(p, t, j, head);
        add_scaled(dk, q, probability * (dot(dout, value) * factor - b.delta[row]) * p.scale);
        add_scaled(dv, dout, probability * factor);
      }
    }
  }
  store_row(b.dk + task * p.head_dim, dk, 1.0f, true, p.head_dim, lane);
  store_row(b.dv + task * p.head_dim, dv, 1.0f, true, p.head_dim, lane);
}

unsigned blocks_for(int64_t tasks) { return static_cast<unsigned>(div_up(tasks, kWarps)); }

}  // namespace

void attention_partial_forward(Stream& stream, const AttentionPartialForwardArgs& args) {
  const PartsParams p = params_of(args.parts);
  if (p.queries == 0) return;
  dispatch_format(args.parts.q.dtype(), "attention_partial_forward", [&]<class T>(TypeTag<T>) {
    partial_forward_kernel<T><<<blocks_for(p.queries * p.num_heads), kThreads, 0, native(stream)>>>(
        p, args.out.data<float>(), args.lse.data<float>());
  });
  SINTER_CUDA_LAUNCHED();
}

void attention_combine(Stream& stream, const AttentionCombineArgs& args) {
  const int64_t heads = args.lse.size(0), queries = args.lse.size(1);
  if (queries == 0) return;
  combine_kernel<<<blocks_for(queries * heads), kThreads, 0, native(stream)>>>(
      args.part.data<float>(), args.part_lse.data<float>(), args.out.data<float>(), args.lse.data<float>(), queries,
      static_cast<int>(heads), static_cast<int>(args.out.size(-1) / heads));
  SINTER_CUDA_LAUNCHED();
}

void attention_partial_backward(Stream& stream, const AttentionPartialBackwardArgs& args) {
  const PartsParams p = params_of(args.parts);
  if (p.queries == 0) return;
  const size_t bytes = static_cast<size_t>(p.queries * p.num_heads) * sizeof(float);
  const BackwardParams b{
      args.out.raw(),        args.dout.raw(),        args.out.dtype(),
      args.dout.dtype(),     args.lse.data<float>(), static_cast<float*>(scratch(stream, Scratch::attention, bytes)),
      args.dq.data<float>(), args.dk.data<float>(),  args.dv.data<float>()};
  dispatch_format(args.parts.q.dtype(), "attention_partial_backward", [&]<class T>(TypeTag<T>) {
    partial_dq_kernel<T><<<blocks_for(p.queries * p.num_heads), kThreads, 0, native(stream)>>>(p, b);
    SINTER_CUDA_LAUNCHED();
    if (p.keys > 0) partial_dkv_kernel<T><<<blocks_for(p.keys * p.num_kv_heads), kThreads, 0, native(stream)>>>(p, b);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
