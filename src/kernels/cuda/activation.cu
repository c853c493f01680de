// Activations, plain and gated, forward and backward.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

using spec::Activation;
constexpr int kThreads = 256;

// 16-bit formats take the hardware's approximate exponential (relative error 2^-21, far under their rounding) and
// hyperbolic tangent (2^-11: less than bf16's rounding of a result near 1, more than that of GELU's small results left
// of 0, which are off by at most 2^-11 |x| / 2).
template <bool kExact>
__device__ __forceinline__ float exponential(float x) {
  return kExact ? expf(x) : __expf(x);
}
template <bool kExact>
__device__ __forceinline__ float hyperbolic_tangent(float x) {
  if constexpr (kExact) return tanhf(x);
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
template <bool kExact>
__device__ __forceinline__ float sigmoid(float x) {
  return kExact ? 1.0f / (1.0f + expf(-x)) : fast_sigmoid(x);
}

template <Activation kKind, bool kExact>
__device__ __forceinline__ float activate(float x) {
  if constexpr (kKind == Activation::silu) return x * sigmoid<kExact>(x);
  if constexpr (kKind == Activation::gelu) return 0.5f * x * erfcf(-x * 0.70710678f);
  if constexpr (kKind == Activation::gelu_tanh) {
    return 0.5f * x * (1.0f + hyperbolic_tangent<kExact>(0.79788456f * (x + 0.044715f * x * x * x)));
  }
  return fmaxf(x, 0.0f);
}

template <Activation kKind, bool kExact>
__device__ __forceinline__ void activate_with_slope(float x, float& value, float& slope) {
  if constexpr (kKind == Activation::silu) {
    float s = sigmoid<kExact>(x);
    value = x * s;
    slope = s * (1.0f + x * (1.0f - s));
  } else if constexpr (kKind == Activation::gelu) {
    float cdf = 0.5f * erfcf(-x * 0.70710678f);
    value = x * cdf;
    slope = cdf + x * 0.39894228f * exponential<kExact>(-0.5f * x * x);
  } else if constexpr (kKind == Activation::gelu_tanh) {
    float t = hyperbolic_tangent<kExact>(0.79788456f * (x + 0.044715f * x * x * x));
    value = 0.5f * x * (1.0f + t);
    slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 0.134145f * x * x);
  } else {
    value = fmaxf(x, 0.0f);
    slope = x > 0 ? 1.0f : 0.0f;
  }
}

// The slope at x, or x where it is the slope itself.
template <Activation kKind, bool kExact, bool kIsSlope>
__device__ __forceinline__ float slope_at(float x) {
  if constexpr (kIsSlope) return x;
  float value, slope;
  activate_with_slope<kKind, kExact>(x, value, slope);
  return slope;
}

// Accesses of data that is used once: no place in the caches is kept for it.
template <class T, int N>
__device__ __forceinline__ void load_once(const T* p, float (&out)[N]) {
  if constexpr (sizeof(T) * N == 16) {
    uint4 raw = __ldcs(reinterpret_cast<const uint4*>(p));
    const T* x = reinterpret_cast<const T*>(&raw);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = to_float(x[i]);
  } else {
    load_floats<T, N>(p, out);
  }
}
template <class T, int N>
__device__ __forceinline__ void store_once(T* p, const float (&in)[N]) {
  if constexpr (sizeof(T) * N == 16) {
    Vector<T, N> x;
#pragma unroll
    for (int i = 0; i < N; ++i) x.v[i] = from_float<T>(in[i]);
    __stcs(reinterpret_cast<uint4*>(p), *reinterpret_cast<const uint4*>(&x));
  } else {
    store_floats<T, N>(p, in);
  }
}

// One vector of N outputs a thread. Rows are of `width` outputs; width = all of them when there is no gate.
template <class T, Activation kKind, bool kGated, int N>
__global__ void __launch_bounds__(kThreads) forward_kernel(const T* x, T* y, int64_t vectors, int64_t width) {
  constexpr bool kExact = sizeof(T) == 4;
  let_next_begin();
  wait_for_previous();
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float a[N], up[N];
  if constexpr (kGated) {
    int64_t per_row = width / N;
    int64_t row = vectors <= UINT32_MAX ? static_cast<uint32_t>(i) / static_cast<uint32_t>(per_row) : i / per_row;
    const T* gate = x + i * N + row * width;  // row r of x starts at 2 r width
    load_floats<T, N>(gate, a);
    load_floats<T, N>(gate + width, up);
  } else {
    load_floats<T, N>(x + i * N, a);
  }
#pragma unroll
  for (int j = 0; j < N; ++j) {
    a[j] = activate<kKind, kExact>(a[j]);
    if constexpr (kGated) a[j] *= up[j];
  }
  store_floats<T, N>(y + i * N, a);
}

// Without a gate, and the slopes. y may be x.
template <class T, Activation kKind, int N>
__global__ void __launch_bounds__(kThreads) forward_slopes_kernel(const T* x, T* y, T* slopes, int64_t vectors) {
  constexpr bool kExact = sizeof(T) == 4;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float a[N], slope[N];
  load_floats<T, N>(x + i * N, a);
#pragma unroll
  for (int j = 0; j < N; ++j) activate_with_slope<kKind, kExact>(a[j], a[j], slope[j]);
  store_floats<T, N>(y + i * N, a);
  store_floats<T, N>(slopes + i * N, slope);
}

// kIsSlope: x holds the slopes, without a gate.
template <class T, Activation kKind, bool kGated, bool kIsSlope, int N>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* dy, const T* x, T* dx, int64_t vectors, int64_t width) {
  constexpr bool kExact = sizeof(T) == 4;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float a[N], up[N], d[N];
  int64_t at = i * N;
  if constexpr (kGated) {
    int64_t per_row = width / N;
    int64_t row = vectors <= UINT32_MAX ? static_cast<uint32_t>(i) / static_cast<uint32_t>(per_row) : i / per_row;
    at += row * width;
    load_once<T, N>(x + at + width, up);
  }
  load_once<T, N>(x + at, a);
  load_once<T, N>(dy + i * N, d);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    if constexpr (kGated) {
      float value, slope;
      activate_with_slope<kKind, kExact>(a[j], value, slope);
      a[j] = d[j] * up[j] * slope;
      up[j] = d[j] * value;
    } else {
      a[j] = d[j] * slope_at<kKind, kExact, kIsSlope>(a[j]);
    }
  }
  store_once<T, N>(dx + at, a);
  if constexpr (kGated) store_once<T, N>(dx + at + width, up);
}

// Backward without a gate, and the sums of dx over the rows on the way: a thread keeps to one vector of columns and
// walks every gridDim.y-th group of kSumRows rows, whose loads are in flight together. partials is (gridDim.y, width).
constexpr int kSumRows = 4;
template <class T, Activation kKind, bool kIsSlope, int N>
__global__ void __launch_bounds__(kThreads)
    backward_sums_kernel(const T* dy, const T* x, T* dx, int64_t rows, int64_t width, float* partials) {
  constexpr bool kExact = sizeof(T) == 4;
  const int64_t column = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * N;
  if (column >= width) return;
  float sums[N] = {};
  for (int64_t first = int64_t{blockIdx.y} * kSumRows; first < rows; first += int64_t{gridDim.y} * kSumRows) {
    Vector<T, N> a[kSumRows], d[kSumRows];
#pragma unroll
    for (int u = 0; u < kSumRows; ++u) {
      if (first + u >= rows) break;
      const int64_t at = (first + u) * width + column;
      a[u] = *reinterpret_cast<const Vector<T, N>*>(x + at);
      d[u] = *reinterpret_cast<const Vector<T, N>*>(dy + at);
    }
#pragma unroll
    for (int u = 0; u < kSumRows; ++u) {
      if (first + u >= rows) break;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const float slope = slope_at<kKind, kExact, kIsSlope>(to_float(a[u].v[j]));
        d[u].v[j] = from_float<T>(to_float(d[u].v[j]) * slope);
        sums[j] += to_float(d[u].v[j]);
      }
      *reinterpret_cast<Vector<T, N>*>(dx + (first + u) * width + column) = d[u];
    }
  }
  store_floats<float, N>(partials + int64_t{blockIdx.y} * width + column, sums);
}

template <class T, bool kGated, int N, class Launch>
void dispatch_kind(Activation kind, Launch&& launch) {
  switch (kind) {
    case Activation::silu:
      launch(std::integral_constant<Activation, Activation::silu>{});
      return;
    case Activation::gelu:
      launch(std::integral_constant<Activation, Activation::gelu>{});
      return;
    case Activation::gelu_tanh:
      launch(std::integral_constant<Activation, Activation::gelu_tanh>{});
      return;
    case Activation::relu:
      launch(std::integral_constant<Activation, Activation::relu>{});
      return;
  }
}

template <class T, bool kGated, int N>
void launch_forward(Stream& stream, const ActivationForwardArgs& args) {
  int64_t vectors = args.y.num_elements() / N, width = args.y.size(-1);
  unsigned grid = static_cast<unsigned>(div_up(vectors, kThreads));
  dispatch_kind<T, kGated, N>(args.kind, [&](auto kind) {
    launch_dependent(stream, forward_kernel<T, decltype(kind)::value, kGated, N>, dim3(grid), kThreads, 0,
                     args.x.data<T>(), args.y.data<T>(), vectors, width);
  });
}

template <class T, int N>
void launch_forward_slopes(Stream& stream, const ActivationForwardArgs& args) {
  const int64_t vectors = args.y.num_elements() / N;
  const unsigned grid = static_cast<unsigned>(div_up(vectors, kThreads));
  dispatch_kind<T, false, N>(args.kind, [&](auto kind) {
    forward_slopes_kernel<T, decltype(kind)::value, N>
        <<<grid, kThreads, 0, native(stream)>>>(args.x.data<T>(), args.y.data<T>(), args.slope.data<T>(), vectors);
  });
  SINTER_CUDA_LAUNCHED();
}

template <class T, bool kGated, int N>
void launch_backward(Stream& stream, const ActivationBackwardArgs& args) {
  int64_t vectors = args.dy.num_elements() / N, width = args.dy.size(-1);
  unsigned grid = static_cast<unsigned>(div_up(vectors, kThreads));
  if (args.slope) {
    backward_kernel<T, Activation::relu, false, true, N><<<grid, kThreads, 0, native(stream)>>>(
        args.dy.data<T>(), args.slope.data<T>(), args.dx.data<T>(), vectors, width);
  } else {
    dispatch_kind<T, kGated, N>(args.kind, [&](auto kind) {
      backward_kernel<T, decltype(kind)::value, kGated, false, N><<<grid, kThreads, 0, native(stream)>>>(
          args.dy.data<T>(), args.x.data<T>(), args.dx.data<T>(), vectors, width);
    });
  }
  SINTER_CUDA_LAUNCHED();
}

template <class T>
void launch_backward_sums(Stream& stream, const ActivationBackwardArgs& args) {
  constexpr int N = kWidth<T>;
  const int64_t width = args.dy.size(-1), rows = args.dy.rows(), vectors = width / N;
  unsigned threads = kThreads;  // that leave few idle in the last block of a row
  while (threads > 64 && div_up(vectors, threads) * threads - vectors > vectors / 16) threads -= 32;
  const int64_t columns = div_up(vectors, threads);
  const int64_t groups =
      std::min(div_up(rows, kSumRows), div_up(int64_t{num_multiprocessors(stream)} * 2048, columns * threads));
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * groups * width));
  dim3 grid(static_cast<unsigned>(columns), static_cast<unsigned>(groups));
  if (args.slope) {
    backward_sums_kernel<T, Activation::relu, true, N><<<grid, threads, 0, native(stream)>>>(
        args.dy.data<T>(), args.slope.data<T>(), args.dx.data<T>(), rows, width, partials);
  } else {
    dispatch_kind<T, false, N>(args.kind, [&](auto kind) {
      backward_sums_kernel<T, decltype(kind)::value, false, N><<<grid, threads, 0, native(stream)>>>(
          args.dy.data<T>(), args.x.data<T>(), args.dx.data<T>(), rows, width, partials);
    });
  }
  SINTER_CUDA_LAUNCHED();
  reduce_partials(stream, partials, groups, width, width, args.dx_sums.data<float>(), true);
}

}  // namespace

void activation_forward(Stream& stream, const ActivationForwardArgs& args) {
  if (args.y.num_elements() == 0) return;
  dispatch_format(args.y.dtype(), "activation_forward", [&]<class T>(TypeTag<T>) {
    constexpr int kN = kWidth<T>;
    bool aligned = is_aligned(args.x.raw()) && is_aligned(args.y.raw()) && is_aligned(args.slope.raw());
    bool vector = aligned && (args.gated ? args.y.size(-1) : args.y.num_elements()) % kN == 0;
    if (args.slope) {
      vector ? launch_forward_slopes<T, kN>(stream, args) : launch_forward_slopes<T, 1>(stream, args);
    } else if (args.gated) {
      vector ? launch_forward<T, true, kN>(stream, args) : launch_forward<T, true, 1>(stream, args);
    } else {
      vector ? launch_forward<T, false, kN>(stream, args) : launch_forward<T, false, 1>(stream, args);
    }
  });
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  if (args.dy.num_elements() == 0) return;
  dispatch_format(args.dy.dtype(), "activation_backward", [&]<class T>(TypeTag<T>) {
    constexpr int kN = kWidth<T>;
    bool aligned = is_aligned(args.x.raw()) && is_aligned(args.slope.raw()) && is_aligned(args.dy.raw()) &&
                   is_aligned(args.dx.raw());
    bool vector = aligned && (args.gated ? args.dy.size(-1) : args.dy.num_elements()) % kN == 0;
    if (args.dx_sums && vector && args.dy.size(-1) % kN == 0) return launch_backward_sums<T>(stream, args);
    if (args.gated) {
      vector ? launch_backward<T, true, kN>(stream, args) : launch_backward<T, true, 1>(stream, args);
    } else {
      vector ? launch_backward<T, false, kN>(stream, args) : launch_backward<T, false, 1>(stream, args);
    }
    if (args.dx_sums) column_sum(stream, {.x = args.dx, .y = args.dx_sums, .accumulate = true});
  });
}

}  // namespace sinter::kernels::cuda
