// RMSNorm and LayerNorm with the residual addition fused in, forward and backward.
//
// A row stays in registers between the passes, so each tensor crosses device memory once. A warp takes a row of up to
// kWarpVectors * 32 vectors, a block of 256 threads a longer one; rows that are not whole 16-byte vectors go to the
// plain kernels at the end. Backward sums dweight and dbias per thread over all its rows, then over the block, then over
// the blocks (reduce_partials): no atomics, so the result does not change from run to run.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

struct ForwardParams {
  const void *x, *residual;
  const float *weight, *bias;
  void *sum, *y;
  float *mean, *rstd;
  int64_t rows, channels;
  float eps;
  bool is_layer;
};

// kRowThreads threads share a row and kRows rows share a block.
template <class T, int kRowThreads, int kRows, int kVectors>
__global__ void __launch_bounds__(kRowThreads* kRows) forward_kernel(ForwardParams p) {
  constexpr int N = kWidth<T>;
  __shared__ float shared[2][kRowThreads / 32];
  int lane = threadIdx.x % kRowThreads;
  int64_t channels = p.channels;
  for (int64_t r = int64_t{blockIdx.x} * kRows + threadIdx.x / kRowThreads; r < p.rows; r += int64_t{gridDim.x} * kRows) {
    const T* x = static_cast<const T*>(p.x) + r * channels;
    float s[kVectors][N];
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * kRowThreads + lane} * N;
      if (c < channels) {
        load_floats<T, N>(x + c, s[v]);
        if (p.residual) {
          float a[N];
          load_floats<T, N>(static_cast<const T*>(p.residual) + r * channels + c, a);
#pragma unroll
          for (int j = 0; j < N; ++j) s[v][j] = to_float(from_float<T>(s[v][j] + a[j]));  // as stored: backward reads that
          store_floats<T, N>(static_cast<T*>(p.sum) + r * channels + c, s[v]);
        }
#pragma unroll
        for (int j = 0; j < N; ++j) total += s[v][j];
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) s[v][j] = 0;
      }
    }
    float mean = 0;
    if (p.is_layer) mean = block_sum<kRowThreads>(total, shared[0]) / static_cast<float>(channels);
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (int64_t{v * kRowThreads + lane} * N < channels) {
#pragma unroll
        for (int j = 0; j < N; ++j) squares += (s[v][j] - mean) * (s[v][j] - mean);
      }
    }
    squares = block_sum<kRowThreads>(squares, shared[1]);
    float rstd = rsqrtf(squares / static_cast<float>(channels) + p.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * kRowThreads + lane} * N;
      if (c < channels) {
        float w[N], b[N] = {};
        load_floats<float, N>(p.weight + c, w);
        if (p.bias) load_floats<float, N>(p.bias + c, b);
#pragma unroll
        for (int j = 0; j < N; ++j) w[j] = (s[v][j] - mean) * rstd * w[j] + b[j];
        store_floats<T, N>(static_cast<T*>(p.y) + r * channels + c, w);
      }
    }
    if (lane == 0) {
      if (p.mean && p.is_layer) p.mean[r] = mean;
      if (p.rstd) p.rstd[r] = rstd;
    }
    if constexpr (kRowThreads > 32) __syncthreads();  // `shared` is free again
  }
}

template <class T>
__global__ void __launch_bounds__(256) forward_any_kernel(ForwardParams p) {
  __shared__ float shared[2][8];
  int64_t r = blockIdx.x, channels = p.channels;
  const T* x = static_cast<const T*>(p.x) + r * channels;
  if (p.residual) {  // each thread reads back only what it wrote itself
    T* sum = static_cast<T*>(p.sum) + r * channels;
    const T* residual = static_cast<const T*>(p.residual) + r * channels;
    for (int64_t c = threadIdx.x; c < channels; c += 256) sum[c] = from_float<T>(to_float(x[c]) + to_float(residual[c]));
    x = sum;
  }
  float mean = 0, squares = 0;
  if (p.is_layer) {
    for (int64_t c = threadIdx.x; c < channels; c += 256) mean += to_float(x[c]);
    mean = block_sum<256>(mean, shared[0]) / static_cast<float>(channels);
  }
  for (int64_t c = threadIdx.x; c < channels; c += 256) squares += (to_float(x[c]) - mean) * (to_float(x[c]) - mean);
  float rstd = rsqrtf(block_sum<256>(squares, shared[1]) / static_cast<float>(channels) + p.eps);
  T* y = static_cast<T*>(p.y) + r * channels;
  for (int64_t c = threadIdx.x; c < channels; c += 256) {
    y[c] = from_float<T>((to_float(x[c]) - mean) * rstd * p.weight[c] + (p.bias ? p.bias[c] : 0.0f));
  }
  if (threadIdx.x == 0) {
    if (p.mean && p.is_layer) p.mean[r] = mean;
    if (p.rstd) p.rstd[r] = rstd;
  }
}

struct BackwardParams {
  const void *dy, *dsum, *s;
  const float *weight, *mean, *rstd;
  void* ds;
  float* partials;  // (gridDim.x, 2, C): sums of dweight, then of dbias
  int64_t rows, channels;
  bool is_layer;
};

// The rows of one block; the loop over rows keeps the weight gradient's sums in registers.
template <class T, int kRowThreads, int kRows, int kVectors, bool kLayer>
__global__ void __launch_bounds__(kRowThreads* kRows) backward_kernel(BackwardParams p) {
  constexpr int N = kWidth<T>;
  __shared__ float shared[2][2][kRowThreads / 32];
  extern __shared__ float sums[];  // (2, C) when several rows share the block
  int lane = threadIdx.x % kRowThreads, group = threadIdx.x / kRowThreads;
  int64_t channels = p.channels;
  float dweight[kVectors][N] = {}, dbias[kLayer ? kVectors : 1][N] = {};
  int turn = 0;
  for (int64_t r = int64_t{blockIdx.x} * kRows + group; r < p.rows; r += int64_t{gridDim.x} * kRows, turn ^= 1) {
    int64_t first = r * channels;
    Vector<T, N> s[kVectors], dy[kVectors], dsum[kVectors];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {  // every load of the row in flight before the first use
      int64_t c = int64_t{v * kRowThreads + lane} * N;
      if (c < channels) {
        s[v] = *reinterpret_cast<const Vector<T, N>*>(static_cast<const T*>(p.s) + first + c);
        dy[v] = *reinterpret_cast<const Vector<T, N>*>(static_cast<const T*>(p.dy) + first + c);
        if (p.dsum) dsum[v] = *reinterpret_cast<const Vector<T, N>*>(static_cast<const T*>(p.dsum) + first + c);
      }
    }
    float mean = kLayer ? p.mean[r] : 0.0f, rstd = p.rstd[r];
    float g_sum = 0, gn_sum = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * kRowThreads + lane} * N;
      if (c < channels) {
        float w[N];
        load_floats<float, N>(p.weight + c, w);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float n = (to_float(s[v].v[j]) - mean) * rstd, d = to_float(dy[v].v[j]), g = d * w[j];
          g_sum += g;
          gn_sum += g * n;
          dweight[v][j] += d * n;
          if constexpr (kLayer) dbias[v][j] += d;
        }
      }
    }
    if constexpr (kLayer) g_sum = block_sum<kRowThreads>(g_sum, shared[turn][0]) / static_cast<float>(channels);
    gn_sum = block_sum<kRowThreads>(gn_sum, shared[turn][1]) / static_cast<float>(channels);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * kRowThreads + lane} * N;
      if (c < channels) {
        float w[N];
        load_floats<float, N>(p.weight + c, w);
#pragma unroll
        for (int j = 0; j < N; ++j) {
          float n = (to_float(s[v].v[j]) - mean) * rstd, g = to_float(dy[v].v[j]) * w[j];
          w[j] = rstd * (g - (kLayer ? g_sum : 0.0f) - n * gn_sum) + (p.dsum ? to_float(dsum[v].v[j]) : 0.0f);
        }
        store_floats<T, N>(static_cast<T*>(p.ds) + first + c, w);
      }
    }
  }
  // Over the rows of the block, one group after the other.
  float* out = p.partials + int64_t{blockIdx.x} * 2 * channels;
  for (int g = 0; g < kRows; ++g) {
    if (group == g) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        int64_t c = int64_t{v * kRowThreads + lane} * N;
        if (c < channels) {
#pragma unroll
          for (int j = 0; j < N; ++j) {
            float* to = kRows > 1 ? sums : out;
            float before = g > 0 ? to[c + j] : 0.0f;
            to[c + j] = before + dweight[v][j];
            if constexpr (kLayer) {
              float before_bias = g > 0 ? to[channels + c + j] : 0.0f;
              to[channels + c + j] = before_bias + dbias[v][j];
            }
          }
        }
      }
    }
    if constexpr (kRows > 1) __syncthreads();
  }
  if constexpr (kRows > 1) {
    for (int64_t c = threadIdx.x; c < (kLayer ? 2 : 1) * channels; c += kRowThreads * kRows) out[c] = sums[c];
  }
}

// Plain kernels for any width: first the weight's partial sums (ds may overwrite dy), then ds.
template <class T>
__global__ void __launch_bounds__(256) backward_weight_any_kernel(BackwardParams p) {
  int64_t c = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (c >= p.channels) return;
  float dweight = 0, dbias = 0;
  for (int64_t r = blockIdx.y; r < p.rows; r += gridDim.y) {
    float d = to_float(static_cast<const T*>(p.dy)[r * p.channels + c]);
    float s = to_float(static_cast<const T*>(p.s)[r * p.channels + c]);
    dweight += d * (s - (p.is_layer ? p.mean[r] : 0.0f)) * p.rstd[r];
    dbias += d;
  }
  p.partials[int64_t{blockIdx.y} * 2 * p.channels + c] = dweight;
  p.partials[(int64_t{blockIdx.y} * 2 + 1) * p.channels + c] = dbias;
}
template <class T>
__global__ void __launch_bounds__(256) backward_any_kernel(BackwardParams p) {
  __shared__ float shared[2][8];
  int64_t r = blockIdx.x, channels = p.channels, first = r * channels;
  const T *dy = static_cast<const T*>(p.dy) + first, *s = static_cast<const T*>(p.s) + first;
  float mean = p.is_layer ? p.mean[r] : 0.0f, rstd = p.rstd[r], g_sum = 0, gn_sum = 0;
  for (int64_t c = threadIdx.x; c < channels; c += 256) {
    float g = to_float(dy[c]) * p.weight[c];
    g_sum += g;
    gn_sum += g * (to_float(s[c]) - mean) * rstd;
  }
  g_sum = p.is_layer ? block_sum<256>(g_sum, shared[0]) / static_cast<float>(channels) : 0.0f;
  gn_sum = block_sum<256>(gn_sum, shared[1]) / static_cast<float>(channels);
  for (int64_t c = threadIdx.x; c < channels; c += 256) {
    float n = (to_float(s[c]) - mean) * rstd, g = to_float(dy[c]) * p.weight[c];
    float past = p.dsum ? to_float(static_cast<const T*>(p.dsum)[first + c]) : 0.0f;
    static_cast<T*>(p.ds)[first + c] = from_float<T>(rstd * (g - g_sum - n * gn_sum) + past);
  }
}

template <int... kCounts, class Launch>
void with_vectors(int64_t needed, std::integer_sequence<int, kCounts...>, Launch&& launch) {
  bool done = false;
  ((!done && needed <= kCounts ? (launch(std::integral_constant<int, kCounts>{}), done = true) : false), ...);
}

template <class T>
void launch_forward(Stream& stream, const ForwardParams& p, bool vector) {
  int64_t vectors = p.channels / kWidth<T>;
  if (!vector || vectors > 256 * 8) {
    forward_any_kernel<T><<<static_cast<unsigned>(p.rows), 256, 0, native(stream)>>>(p);
  } else if (vectors <= 32 * 8) {
    with_vectors(div_up(vectors, 32), std::integer_sequence<int, 1, 2, 3, 4, 6, 7, 8>{}, [&](auto count) {
      forward_kernel<T, 32, 4, decltype(count)::value><<<grid_for(stream, p.rows, 4, 32), 128, 0, native(stream)>>>(p);
    });
  } else {
    with_vectors(div_up(vectors, 256), std::integer_sequence<int, 2, 4, 8>{}, [&](auto count) {
      forward_kernel<T, 256, 1, decltype(count)::value><<<grid_for(stream, p.rows, 1, 32), 256, 0, native(stream)>>>(p);
    });
  }
  SINTER_CUDA_LAUNCHED();
}

// Returns the number of groups of partial sums written.
template <class T, bool kLayer>
int64_t launch_backward(Stream& stream, BackwardParams p, bool vector) {
  int64_t vectors = p.channels / kWidth<T>, groups = 0;
  auto with_partials = [&](int64_t count) {
    groups = count;
    p.partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * 2 * count * p.channels));
  };
  if (!vector || vectors > 256 * 4) {
    with_partials(std::min<int64_t>(p.rows, 64));
    dim3 grid(static_cast<unsigned>(div_up(p.channels, 256)), static_cast<unsigned>(groups));
    backward_weight_any_kernel<T><<<grid, 256, 0, native(stream)>>>(p);
    SINTER_CUDA_LAUNCHED();
    backward_any_kernel<T><<<static_cast<unsigned>(p.rows), 256, 0, native(stream)>>>(p);
  } else if (vectors <= 32 * 4) {
    with_partials(grid_for(stream, p.rows, 8, 3));
    with_vectors(div_up(vectors, 32), std::integer_sequence<int, 1, 2, 3, 4>{}, [&](auto count) {
      size_t bytes = sizeof(float) * 2 * static_cast<size_t>(p.channels);
      backward_kernel<T, 32, 8, decltype(count)::value, kLayer>
          <<<static_cast<unsigned>(groups), 256, bytes, native(stream)>>>(p);
    });
  } else {
    bool narrow = vectors <= 128 * 2;
    with_partials(grid_for(stream, p.rows, 1, narrow ? 6 : 3));
    if (narrow) {
      backward_kernel<T, 128, 1, 2, kLayer><<<static_cast<unsigned>(groups), 128, 0, native(stream)>>>(p);
    } else {
      with_vectors(div_up(vectors, 256), std::integer_sequence<int, 2, 4>{}, [&](auto count) {
        backward_kernel<T, 256, 1, decltype(count)::value, kLayer>
            <<<static_cast<unsigned>(groups), 256, 0, native(stream)>>>(p);
      });
    }
  }
  SINTER_CUDA_LAUNCHED();
  return groups;
}

}  // namespace

void norm_forward(Stream& stream, const NormForwardArgs& args) {
  int64_t rows = args.x.rows(), channels = args.x.size(-1);
  if (rows == 0) return;
  dispatch_format(args.x.dtype(), "norm_forward", [&]<class T>(TypeTag<T>) {
    bool vector = channels % kWidth<T> == 0;
    for (const Tensor* t : {&args.x, &args.residual, &args.weight, &args.bias, &args.sum, &args.y}) {
      vector = vector && is_aligned(t->raw());
    }
    ForwardParams p{args.x.raw(), args.residual.raw(), args.weight.data<float>(), args.bias.data<float>(), args.sum.raw(),
                    args.y.raw(), args.mean.data<float>(), args.rstd.data<float>(), rows, channels, args.eps,
                    args.kind == spec::NormKind::layer};
    launch_forward<T>(stream, p, vector);
  });
}

void norm_backward(Stream& stream, const NormBackwardArgs& args) {
  int64_t rows = args.s.rows(), channels = args.s.size(-1);
  if (rows == 0) return;
  bool is_layer = args.kind == spec::NormKind::layer;
  int64_t groups = 0;
  dispatch_format(args.s.dtype(), "norm_backward", [&]<class T>(TypeTag<T>) {
    bool vector = channels % kWidth<T> == 0;
    for (const Tensor* t : {&args.dy, &args.dsum, &args.s, &args.weight, &args.ds}) vector = vector && is_aligned(t->raw());
    BackwardParams p{args.dy.raw(), args.dsum.raw(), args.s.raw(), args.weight.data<float>(), args.mean.data<float>(),
                     args.rstd.data<float>(), args.ds.raw(), nullptr, rows, channels, is_layer || args.dbias};
    p.is_layer = is_layer;
    groups = is_layer ? launch_backward<T, true>(stream, p, vector) : launch_backward<T, false>(stream, p, vector);
  });
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, 0));
  reduce_partials(stream, partials, groups, channels, 2 * channels, args.dweight.data<float>(), true);
  if (args.dbias) {
    SINTER_CHECK(is_layer, "[norm_backward] a bias with RMSNorm is not supported on CUDA");
    reduce_partials(stream, partials + channels, groups, channels, 2 * channels, args.dbias.data<float>(), true);
  }
}

}  // namespace sinter::kernels::cuda
