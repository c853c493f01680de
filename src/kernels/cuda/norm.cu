// RMSNorm and LayerNorm with the residual addition fused in, forward and backward.
//
// A row stays in registers between the passes, so each tensor crosses device memory once. Forward gives a row of up to
// 4 * 32 vectors to a warp; longer rows to a block with one 16-byte vector a thread; backward gives a block several
// rows at once, a vector of each to a thread. Rows that are not whole vectors go to the plain kernels. Backward sums
// dweight, dbias and ds per thread over all rows of its block, then over the blocks (reduce_partial_arrays): no
// atomics, so the result does not change from run to run.
#include "kernels/cuda/reductions.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kWarps = 4;

struct ForwardParams {
  const void *x, *residual;
  const float *weight, *bias;
  void *sum, *y;
  float *mean, *rstd;
  int64_t rows, channels;
  float eps;
  bool is_layer;
};

// A warp a row, kWarps rows a block.
template <class T, int kVectors>
__global__ void __launch_bounds__(32 * kWarps) forward_warp_kernel(ForwardParams p) {
  constexpr int N = kWidth<T>;
  int lane = threadIdx.x % 32;
  int64_t channels = p.channels;
  for (int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; r < p.rows; r += int64_t{gridDim.x} * kWarps) {
    const T* x = static_cast<const T*>(p.x) + r * channels;
    float s[kVectors][N];
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * 32 + lane} * N;
      if (c < channels) {
        load_floats<T, N>(x + c, s[v]);
        if (p.residual) {
          float a[N];
          load_floats<T, N>(static_cast<const T*>(p.residual) + r * channels + c, a);
#pragma unroll
          for (int j = 0; j < N; ++j)
            s[v][j] = to_float(from_float<T>(s[v][j] + a[j]));  // as stored: backward reads that
          store_floats<T, N>(static_cast<T*>(p.sum) + r * channels + c, s[v]);
        }
#pragma unroll
        for (int j = 0; j < N; ++j) total += s[v][j];
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) s[v][j] = 0;
      }
    }
    float mean = p.is_layer ? warp_sum(total) / static_cast<float>(channels) : 0.0f;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (int64_t{v * 32 + lane} * N < channels) {
#pragma unroll
        for (int j = 0; j < N; ++j) squares += (s[v][j] - mean) * (s[v][j] - mean);
      }
    }
    float rstd = rsqrtf(warp_sum(squares) / static_cast<float>(channels) + p.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      int64_t c = int64_t{v * 32 + lane} * N;
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
  }
}

// The sum over a block of any whole number of warps, in every thread. `shared` must not be reused before a barrier.
__device__ __forceinline__ float sum_of_block(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? shared[threadIdx.x % 32] : 0.0f;
  return warp_sum(x);
}

// A block a row, one vector a thread.
template <class T>
__global__ void __launch_bounds__(1024) forward_block_kernel(ForwardParams p) {
  constexpr int N = kWidth<T>;
  __shared__ float shared[2][2][32];
  int64_t channels = p.channels, c = int64_t{threadIdx.x} * N;
  bool active = c < channels;
  Vector<T, N> x{}, residual{};
  auto load = [&](int64_t r) {
    if (!active || r >= p.rows) return;
    x = *reinterpret_cast<const Vector<T, N>*>(static_cast<const T*>(p.x) + r * channels + c);
    if (p.residual)
      residual = *reinterpret_cast<const Vector<T, N>*>(static_cast<const T*>(p.residual) + r * channels + c);
  };
  float w[N] = {}, b[N] = {};
  if (active) {
    load_floats<float, N>(p.weight + c, w);
    if (p.bias) load_floats<float, N>(p.bias + c, b);
  }
  load(blockIdx.x);
  int turn = 0;
  for (int64_t r = blockIdx.x; r < p.rows; r += gridDim.x, turn ^= 1) {
    float s[N], total = 0, squares = 0;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      s[j] = to_float(x.v[j]);
      if (p.residual) s[j] = to_float(from_float<T>(s[j] + to_float(residual.v[j])));
      total += s[j];
    }
    if (p.residual && active) store_floats<T, N>(static_cast<T*>(p.sum) + r * channels + c, s);
    load(r + gridDim.x);
    float mean = p.is_layer ? sum_of_block(total, shared[turn][0]) / static_cast<float>(channels) : 0.0f;
#pragma unroll
    for (int j = 0; j < N; ++j) squares += active ? (s[j] - mean) * (s[j] - mean) : 0.0f;
    float rstd = rsqrtf(sum_of_block(squares, shared[turn][1]) / static_cast<float>(channels) + p.eps);
    if (active) {
#pragma unroll
      for (int j = 0; j < N; ++j) s[j] = (s[j] - mean) * rstd * w[j] + b[j];
      store_floats<T, N>(static_cast<T*>(p.y) + r * channels + c, s);
    }
    if (threadIdx.x == 0) {
      if (p.mean && p.is_layer) p.mean[r] = mean;
      if (p.rstd) p.rstd[r] = rstd;
    }
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
    for (int64_t c = threadIdx.x; c < channels; c += 256)
      sum[c] = from_float<T>(to_float(x[c]) + to_float(residual[c]));
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
  float* partials;  // (gridDim.x, kArrays, C): sums of dweight, of dbias, of ds
  int64_t rows, channels;
  bool is_layer;
};
constexpr int kArrays = 3;

// The sums over a warp of kCount values a lane, a power of two: lane l gets that of values[l / (32 / kCount)]. Each
// step hands half of the values to the lane across, so it takes about kCount + 5 shuffles instead of 5 * kCount.
template <int kCount>
__device__ __forceinline__ float warp_sums(float (&values)[kCount]) {
  int lane = threadIdx.x % 32, step = 16;
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2, step /= 2) {
    bool is_upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      float mine = is_upper ? values[i + half] : values[i], other = is_upper ? values[i] : values[i + half];
      values[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
    }
  }
  float sum = values[0];
#pragma unroll
  for (; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return sum;
}

// A block takes kRows rows at a time, a thread one vector of columns of each: one barrier serves all their sums, and
// the sums over rows need registers for one vector only. With kAhead the next rows' loads are in flight all the while.
template <class T, bool kLayer, int kRows, int kMaxThreads, bool kAhead>
__global__ void __launch_bounds__(kMaxThreads, kMaxThreads <= 256 ? 2 : 1) backward_block_kernel(BackwardParams p) {
  constexpr int N = kWidth<T>, kValues = kLayer ? 2 * kRows : kRows;  // a row's sum of g n, then of g
  __shared__ __align__(16) float shared[2][kMaxThreads / 32][kValues];
  const int64_t channels = p.channels, c = int64_t{threadIdx.x} * N, stride = int64_t{gridDim.x} * kRows;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const bool active = c < channels;
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  float w[N] = {}, dweight[N] = {}, dbias[N] = {}, ds_sums[N] = {};
  if (active) load_floats<float, N>(p.weight + c, w);
  struct Rows {
    Packed s[kRows], dy[kRows], past[kRows];
    float scale[kRows], shift[kRows];
  };
  auto load = [&](int64_t first) {
    Rows x;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t r = first + i, at = r * channels + c;
      x.s[i] = x.dy[i] = x.past[i] = {};
      x.scale[i] = x.shift[i] = 0;
      if (r >= p.rows) continue;
      x.scale[i] = p.rstd[r];
      if constexpr (kLayer) x.shift[i] = -p.mean[r] * x.scale[i];
      if (!active) continue;
      x.s[i] = load_packed(static_cast<const T*>(p.s) + at);
      x.dy[i] = load_packed(static_cast<const T*>(p.dy) + at);
      if (p.dsum) x.past[i] = load_packed(static_cast<const T*>(p.dsum) + at);
    }
    return x;
  };
  int64_t first = int64_t{blockIdx.x} * kRows;
  Rows ahead;
  if constexpr (kAhead) ahead = load(first);
  for (int turn = 0; first < p.rows; first += stride, turn ^= 1) {
    Rows x;
    if constexpr (kAhead) {
      x = ahead;
      ahead = load(first + stride);
    } else {
      x = load(first);
    }
    // n = (s - mean) * rstd, g = dy * weight, ds = rstd * (g - mean(g) - n * mean(g n)) + dsum
    float sums[kValues];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      float gn_sum = 0, g_sum = 0, s[N], d[N];
      unpack<T>(x.s[i], s);
      unpack<T>(x.dy[i], d);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        float n = s[j] * x.scale[i] + x.shift[i], g = d[j] * w[j];
        gn_sum += g * n;
        g_sum += g;
        dweight[j] += d[j] * n;
        if constexpr (kLayer) dbias[j] += d[j];
      }
      sums[i] = gn_sum;
      if constexpr (kLayer) sums[kRows + i] = g_sum;
      forget(x.s[i]);
      forget(x.dy[i]);
    }
    float mine = warp_sums<kValues>(sums);
    if (lane % (32 / kValues) == 0) shared[turn][warp][lane / (32 / kValues)] = mine;
    __syncthreads();  // the other half of `shared` may still be read: the next turn writes that only after this barrier
    float totals[kValues] = {};
    for (int other = 0; other < num_warps; ++other) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) totals[v] += shared[turn][other][v];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float by_n = -x.scale[i] * totals[i] * inverse_channels;
      const float by_mean = kLayer ? -x.scale[i] * totals[kValues - kRows + i] * inverse_channels : 0.0f;
      // rstd * g + n * by_n + by_mean, with n = s * scale + shift multiplied out
      const float by_s = x.scale[i] * by_n, constant = x.shift[i] * by_n + by_mean;
      float s[N], d[N], past[N];
      unpack<T>(x.s[i], s);
      unpack<T>(x.dy[i], d);
      unpack<T>(x.past[i], past);
      Vector<T, N> ds;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        ds.v[j] = from_float<T>(d[j] * w[j] * x.scale[i] + (s[j] * by_s + constant) + past[j]);
      }
      if (active && first + i < p.rows) {
        *reinterpret_cast<Vector<T, N>*>(static_cast<T*>(p.ds) + (first + i) * channels + c) = ds;
#pragma unroll
        for (int j = 0; j < N; ++j) ds_sums[j] += to_float(ds.v[j]);
      }
    }
  }
  if (!active) return;
  float* out = p.partials + int64_t{blockIdx.x} * kArrays * channels + c;
  store_floats<float, N>(out, dweight);
  if constexpr (kLayer) store_floats<float, N>(out + channels, dbias);
  store_floats<float, N>(out + 2 * channels, ds_sums);
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
  p.partials[int64_t{blockIdx.y} * kArrays * p.channels + c] = dweight;
  p.partials[(int64_t{blockIdx.y} * kArrays + 1) * p.channels + c] = dbias;
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

// Threads for one vector each, in whole warps.
unsigned block_for(int64_t vectors) { return static_cast<unsigned>(div_up(vectors, 32) * 32); }

// As many blocks as run at once: each then takes every gridDim.x-th row, and none waits for a second wave.
template <class Kernel>
int64_t resident_blocks(Stream& stream, Kernel kernel, unsigned threads, int64_t rows, int64_t most_per_sm) {
  int per_sm = 0;
  SINTER_CUDA_CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, static_cast<int>(threads), 0));
  return std::min<int64_t>(rows, std::min<int64_t>(std::max(per_sm, 1), most_per_sm) * num_multiprocessors(stream));
}

template <class T>
void launch_forward(Stream& stream, const ForwardParams& p, bool vector) {
  int64_t vectors = p.channels / kWidth<T>;
  if (!vector || vectors > 1024) {
    forward_any_kernel<T><<<static_cast<unsigned>(p.rows), 256, 0, native(stream)>>>(p);
  } else if (vectors <= 32 * 4) {
    with_vectors(div_up(vectors, 32), std::integer_sequence<int, 1, 2, 3, 4>{}, [&](auto count) {
      forward_warp_kernel<T, decltype(count)::value>
          <<<grid_for(stream, p.rows, kWarps, 32), 32 * kWarps, 0, native(stream)>>>(p);
    });
  } else {
    unsigned threads = block_for(vectors);
    int64_t blocks = resident_blocks(stream, forward_block_kernel<T>, threads, p.rows, 32);
    forward_block_kernel<T><<<static_cast<unsigned>(blocks), threads, 0, native(stream)>>>(p);
  }
  SINTER_CUDA_LAUNCHED();
}

// Returns the number of groups of partial sums written; has_ds_sums says whether those of ds are among them.
template <class T, bool kLayer>
int64_t launch_backward(Stream& stream, BackwardParams p, bool has_ds_sums) {
  int64_t vectors = p.channels / kWidth<T>, groups = 0;
  auto with_partials = [&](int64_t count) {
    groups = count;
    p.partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * kArrays * count * p.channels));
  };
  auto launch = [&](auto kernel, int64_t rows_at_once) {
    unsigned threads = block_for(vectors);
    with_partials(resident_blocks(stream, kernel, threads, div_up(p.rows, rows_at_once), 8));
    kernel<<<static_cast<unsigned>(groups), threads, 0, native(stream)>>>(p);
  };
  if (!has_ds_sums) {
    with_partials(std::min<int64_t>(p.rows, 64));
    dim3 grid(static_cast<unsigned>(div_up(p.channels, 256)), static_cast<unsigned>(groups));
    backward_weight_any_kernel<T><<<grid, 256, 0, native(stream)>>>(p);
    SINTER_CUDA_LAUNCHED();
    backward_any_kernel<T><<<static_cast<unsigned>(p.rows), 256, 0, native(stream)>>>(p);
  } else if (vectors <= 256) {
    launch(backward_block_kernel<T, kLayer, 2, 256, true>, 2);
  } else if (vectors <= 512) {
    launch(backward_block_kernel<T, kLayer, 1, 512, true>, 1);
  } else {
    launch(backward_block_kernel<T, kLayer, 1, 1024, false>, 1);
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
    ForwardParams p{args.x.raw(),
                    args.residual.raw(),
                    args.weight.data<float>(),
                    args.bias.data<float>(),
                    args.sum.raw(),
                    args.y.raw(),
                    args.mean.data<float>(),
                    args.rstd.data<float>(),
                    rows,
                    channels,
                    args.eps,
                    args.kind == spec::NormKind::layer};
    launch_forward<T>(stream, p, vector);
  });
}

void norm_backward(Stream& stream, const NormBackwardArgs& args) {
  int64_t rows = args.s.rows(), channels = args.s.size(-1);
  if (rows == 0) return;
  bool is_layer = args.kind == spec::NormKind::layer, has_ds_sums = true;
  SINTER_CHECK(is_layer || !args.dbias, "[norm_backward] a bias with RMSNorm is not supported on CUDA");
  int64_t groups = 0;
  dispatch_format(args.s.dtype(), "norm_backward", [&]<class T>(TypeTag<T>) {
    has_ds_sums = channels % kWidth<T> == 0 && channels / kWidth<T> <= 1024;
    for (const Tensor* t : {&args.dy, &args.dsum, &args.s, &args.weight, &args.ds})
      has_ds_sums = has_ds_sums && is_aligned(t->raw());
    BackwardParams p{args.dy.raw(),
                     args.dsum.raw(),
                     args.s.raw(),
                     args.weight.data<float>(),
                     args.mean.data<float>(),
                     args.rstd.data<float>(),
                     args.ds.raw(),
                     nullptr,
                     rows,
                     channels,
                     is_layer};
    groups =
        is_layer ? launch_backward<T, true>(stream, p, has_ds_sums) : launch_backward<T, false>(stream, p, has_ds_sums);
  });
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, 0));
  reduce_partial_arrays(
      stream, partials, groups, channels,
      {kArrays,
       {args.dweight.data<float>(), args.dbias.data<float>(), has_ds_sums ? args.ds_sums.data<float>() : nullptr}});
  if (args.ds_sums && !has_ds_sums) column_sum(stream, {.x = args.ds, .y = args.ds_sums, .accumulate = true});
}

}  // namespace sinter::kernels::cuda
