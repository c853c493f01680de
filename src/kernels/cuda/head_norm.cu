// RMSNorm over each query and key head of packed QKV rows; values are copied.
#include "kernels/cuda/reductions.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxPerLane = 8;

struct HeadParams {
  const void *in, *qkv;  // forward: in = qkv; backward: in = dout
  const float *q_weight, *k_weight;
  void* out;
  float* rstd;
  float* partials;  // (gridDim.x, 2, D): sums of dq_weight, then of dk_weight
  int64_t tokens;
  int num_heads, num_kv_heads, head_dim;
  float eps;
};

// A group of kGroup lanes holds one head, N neighbouring elements a lane when N > 1 (a whole 16-byte vector); with
// N == 1 a warp strides over heads of any size up to 32 * kMaxPerLane.
template <class T, int N, int kGroup>
struct HeadRow {
  static constexpr int kPieces = N == 1 ? kMaxPerLane : 1;
  int lane, head_dim;
  __device__ __forceinline__ int column(int piece) const { return N == 1 ? piece * 32 + lane : lane * N; }
  __device__ __forceinline__ bool holds(int piece) const { return column(piece) < head_dim; }
  __device__ __forceinline__ void load(const T* p, float (&x)[kPieces][N]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (holds(i)) {
        load_floats<T, N>(p + column(i), x[i]);
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) x[i][j] = 0;
      }
    }
  }
  __device__ __forceinline__ void store(T* p, const float (&x)[kPieces][N]) const {
#pragma unroll
    for (int i = 0; i < kPieces; ++i) {
      if (holds(i)) store_floats<T, N>(p + column(i), x[i]);
    }
  }
  __device__ __forceinline__ static float sum(float x) {
#pragma unroll
    for (int step = kGroup / 2; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
  }
};

template <class T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) forward_kernel(HeadParams p) {
  using Row = HeadRow<T, N, kGroup>;
  Row row{static_cast<int>(threadIdx.x % kGroup), p.head_dim};
  int heads = p.num_heads + 2 * p.num_kv_heads, normed = p.num_heads + p.num_kv_heads;
  int64_t total = p.tokens * heads;
  constexpr int kPerBlock = kThreads / kGroup;
  // All lanes of a warp stay in the loop together: the sum exchanges over the whole warp.
  for (int64_t base = int64_t{blockIdx.x} * kPerBlock; base < total; base += int64_t{gridDim.x} * kPerBlock) {
    int64_t i = base + threadIdx.x / kGroup;
    bool valid = i < total;
    int64_t t = valid ? i / heads : 0;
    int h = static_cast<int>(valid ? i - t * heads : 0);
    const T* in = static_cast<const T*>(p.in) + (valid ? i : 0) * p.head_dim;
    float x[Row::kPieces][N], squares = 0;
    row.load(in, x);
#pragma unroll
    for (int k = 0; k < Row::kPieces; ++k) {
#pragma unroll
      for (int j = 0; j < N; ++j) squares += x[k][j] * x[k][j];
    }
    float rstd = rsqrtf(Row::sum(squares) / static_cast<float>(p.head_dim) + p.eps);
    if (!valid) continue;
    if (h < normed) {
      const float* weight = h < p.num_heads ? p.q_weight : p.k_weight;
#pragma unroll
      for (int k = 0; k < Row::kPieces; ++k) {
        if (!row.holds(k)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) x[k][j] *= rstd * weight[row.column(k) + j];
      }
      if (row.lane == 0 && p.rstd) p.rstd[t * normed + h] = rstd;
    }
    row.store(static_cast<T*>(p.out) + i * p.head_dim, x);
  }
}

template <class T, int N, int kGroup>
__global__ void __launch_bounds__(kThreads) backward_kernel(HeadParams p) {
  using Row = HeadRow<T, N, kGroup>;
  extern __shared__ float sums[];  // (groups of the block, D)
  Row row{static_cast<int>(threadIdx.x % kGroup), p.head_dim};
  int heads = p.num_heads + 2 * p.num_kv_heads, normed = p.num_heads + p.num_kv_heads;
  int64_t total = p.tokens * heads;
  constexpr int kPerBlock = kThreads / kGroup;
  float dq[Row::kPieces][N] = {}, dk[Row::kPieces][N] = {};
  for (int64_t base = int64_t{blockIdx.x} * kPerBlock; base < total; base += int64_t{gridDim.x} * kPerBlock) {
    int64_t i = base + threadIdx.x / kGroup;
    bool valid = i < total;
    int64_t t = valid ? i / heads : 0;
    int h = static_cast<int>(valid ? i - t * heads : 0);
    float d[Row::kPieces][N], n[Row::kPieces][N], dot = 0;
    row.load(static_cast<const T*>(p.in) + (valid ? i : 0) * p.head_dim, d);
    bool is_normed = valid && h < normed;
    const float* weight = h < p.num_heads ? p.q_weight : p.k_weight;
    float rstd = is_normed ? p.rstd[t * normed + h] : 0.0f;
    if (is_normed) {
      row.load(static_cast<const T*>(p.qkv) + i * p.head_dim, n);
#pragma unroll
      for (int k = 0; k < Row::kPieces; ++k) {
        if (!row.holds(k)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) {
          n[k][j] *= rstd;
          float along = d[k][j] * n[k][j];
          dq[k][j] += h < p.num_heads ? along : 0.0f;
          dk[k][j] += h < p.num_heads ? 0.0f : along;
          dot += along * weight[row.column(k) + j];
        }
      }
    }
    dot = Row::sum(dot) / static_cast<float>(p.head_dim);
    if (!valid) continue;
    if (is_normed) {
#pragma unroll
      for (int k = 0; k < Row::kPieces; ++k) {
        if (!row.holds(k)) continue;
#pragma unroll
        for (int j = 0; j < N; ++j) d[k][j] = rstd * (d[k][j] * weight[row.column(k) + j] - n[k][j] * dot);
      }
    }
    row.store(static_cast<T*>(p.out) + i * p.head_dim, d);
  }
  for (int which = 0; which < 2; ++which) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < Row::kPieces; ++k) {
      if (!row.holds(k)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        sums[threadIdx.x / kGroup * p.head_dim + row.column(k) + j] = which == 0 ? dq[k][j] : dk[k][j];
      }
    }
    __syncthreads();
    for (int c = threadIdx.x; c < p.head_dim; c += kThreads) {
      float sum = 0;
      for (int g = 0; g < kPerBlock; ++g) sum += sums[g * p.head_dim + c];
      p.partials[(int64_t{blockIdx.x} * 2 + which) * p.head_dim + c] = sum;
    }
  }
}

// Chooses how many lanes hold a head.
template <class T, class Launch>
void with_group(int64_t head_dim, bool vector, Launch&& launch) {
  constexpr int N = kWidth<T>;
  auto call = [&]<int kN, int kGroup>() { launch.template operator()<kN, kGroup>(); };
  if (!vector || head_dim > 32 * N) {
    SINTER_CHECK(head_dim <= 32 * kMaxPerLane, "[head_norm] head size {} on CUDA; at most {}", head_dim,
                 32 * kMaxPerLane);
    call.template operator()<1, 32>();
  } else if (head_dim <= 4 * N) {
    call.template operator()<N, 4>();
  } else if (head_dim <= 8 * N) {
    call.template operator()<N, 8>();
  } else if (head_dim <= 16 * N) {
    call.template operator()<N, 16>();
  } else {
    call.template operator()<N, 32>();
  }
}

}  // namespace

void head_norm_forward(Stream& stream, const HeadNormForwardArgs& args) {
  int64_t tokens = args.qkv.size(0), total = tokens * (args.num_heads + 2 * args.num_kv_heads);
  if (total == 0) return;
  HeadParams p{args.qkv.raw(),
               nullptr,
               args.q_weight.data<float>(),
               args.k_weight.data<float>(),
               args.out.raw(),
               args.rstd.data<float>(),
               nullptr,
               tokens,
               static_cast<int>(args.num_heads),
               static_cast<int>(args.num_kv_heads),
               static_cast<int>(args.head_dim),
               args.eps};
  dispatch_format(args.qkv.dtype(), "head_norm_forward", [&]<class T>(TypeTag<T>) {
    bool vector = args.head_dim % kWidth<T> == 0 && is_aligned(p.in) && is_aligned(p.out);
    with_group<T>(args.head_dim, vector, [&]<int kN, int kGroup>() {
      unsigned grid = grid_for(stream, total, kThreads / kGroup, 64);
      forward_kernel<T, kN, kGroup><<<grid, kThreads, 0, native(stream)>>>(p);
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void head_norm_backward(Stream& stream, const HeadNormBackwardArgs& args) {
  int64_t tokens = args.qkv.size(0), total = tokens * (args.num_heads + 2 * args.num_kv_heads);
  if (total == 0) return;
  HeadParams p{args.dout.raw(),
               args.qkv.raw(),
               args.q_weight.data<float>(),
               args.k_weight.data<float>(),
               args.dqkv.raw(),
               args.rstd.data<float>(),
               nullptr,
               tokens,
               static_cast<int>(args.num_heads),
               static_cast<int>(args.num_kv_heads),
               static_cast<int>(args.head_dim),
               0};
  int64_t groups = 0;
  dispatch_format(args.qkv.dtype(), "head_norm_backward", [&]<class T>(TypeTag<T>) {
    bool vector = args.head_dim % kWidth<T> == 0 && is_aligned(p.in) && is_aligned(p.qkv) && is_aligned(p.out);
    with_group<T>(args.head_dim, vector, [&]<int kN, int kGroup>() {
      unsigned grid = grid_for(stream, total, kThreads / kGroup, 6);
      groups = grid;
      p.partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * 2 * grid * args.head_dim));
      size_t bytes = sizeof(float) * (kThreads / kGroup) * static_cast<size_t>(args.head_dim);
      backward_kernel<T, kN, kGroup><<<grid, kThreads, bytes, native(stream)>>>(p);
    });
  });
  SINTER_CUDA_LAUNCHED();
  reduce_partial_arrays(stream, p.partials, groups, args.head_dim,
                        {2, {args.dq_weight.data<float>(), args.dk_weight.data<float>()}});
}

}  // namespace sinter::kernels::cuda
