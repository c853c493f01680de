// RMSNorm and LayerNorm with the residual addition fused in, forward and backward.
//
// A row stays on the multiprocessor between the passes, so each tensor crosses device memory once. Forward gives a row
// of up to 8 * 32 vectors to a warp; longer rows, and backward all rows, to a block with one 16-byte vector a thread.
// Rows that are not whole vectors go to the plain kernels. Backward sums dweight, dbias and ds per thread over all rows
// of its block, then over the blocks (reduce_partial_arrays): no atomics, so the result does not change from run to
// run.
#include "kernels/cuda/mma.cuh"
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
  if (may_overlap(p.rows)) let_next_begin();
  wait_for_previous();
  const int lane = threadIdx.x % 32;
  const int64_t channels = p.channels;
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  auto is_inside = [&](int v) { return int64_t{v * 32 + lane} * N < channels; };
  for (int64_t r = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32; r < p.rows; r += int64_t{gridDim.x} * kWarps) {
    const int64_t first = r * channels + lane * N;  // of vector v: 32 * N * v further
    // All of a row's loads before its first store: sum may be x, so the compiler would not move them past it.
    Packed x[kVectors] = {}, residual[kVectors] = {};
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!is_inside(v)) continue;
      x[v] = load_packed(static_cast<const T*>(p.x) + first + v * 32 * N);
      if (p.residual) residual[v] = load_packed(static_cast<const T*>(p.residual) + first + v * 32 * N);
    }
    float s[kVectors][N];
    float total = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      unpack<T>(x[v], s[v]);
      if (p.residual) {
        float a[N];
        unpack<T>(residual[v], a);
#pragma unroll
        for (int j = 0; j < N; ++j)
          s[v][j] = to_float(from_float<T>(s[v][j] + a[j]));  // as stored: backward reads that
        if (is_inside(v)) store_floats<T, N>(static_cast<T*>(p.sum) + first + v * 32 * N, s[v]);
      }
#pragma unroll
      for (int j = 0; j < N; ++j) total += s[v][j];
    }
    const float mean = p.is_layer ? warp_sum(total) * inverse_channels : 0.0f;
    float squares = 0;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!is_inside(v)) continue;
#pragma unroll
      for (int j = 0; j < N; ++j) squares += (s[v][j] - mean) * (s[v][j] - mean);
    }
    const float rstd = rsqrtf(warp_sum(squares) * inverse_channels + p.eps);
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
      if (!is_inside(v)) continue;
      float w[N], b[N] = {};
      load_floats<float, N>(p.weight + (v * 32 + lane) * N, w);
      if (p.bias) load_floats<float, N>(p.bias + (v * 32 + lane) * N, b);
#pragma unroll
      for (int j = 0; j < N; ++j) w[j] = (s[v][j] - mean) * rstd * w[j] + b[j];
      store_floats<T, N>(static_cast<T*>(p.y) + first + v * 32 * N, w);
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
  if (may_overlap(p.rows)) let_next_begin();
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
  wait_for_previous();
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
  if (may_overlap(p.rows)) let_next_begin();
  wait_for_previous();
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
  float* partials;  // (groups, kArrays, C): sums of dweight; of dbias and, before rounding, of ds for LayerNorm
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

// A block takes a row at a time, a thread one vector of it, so that the sums over rows need registers for one vector
// only. Rows come through kStages buffers in shared memory: bytes on their way need no registers that wait for them. A
// thread reads only what it copied itself.
constexpr int kStages = 2;
template <class T, bool kLayer, int kMaxThreads>
__global__ void __launch_bounds__(kMaxThreads, kMaxThreads <= 256 ? 3 : 1) backward_block_kernel(BackwardParams p) {
  constexpr int N = kWidth<T>, kValues = kLayer ? 2 : 1;  // a row's sum of g n, then of g
  constexpr int kParts = 32 / kValues;                    // lanes that share the sum of one value
  extern __shared__ uint4 staged[];                       // [kStages][s, dy, dsum][threads]
  __shared__ float shared[2][kMaxThreads / 32][kValues];
  const int64_t channels = p.channels, c = int64_t{threadIdx.x} * N, stride = gridDim.x;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, num_warps = blockDim.x / 32;
  const bool active = c < channels;
  const float inverse_channels = 1.0f / static_cast<float>(channels);
  auto slot = [&](int stage, int tensor) {
    return reinterpret_cast<T*>(staged + (stage * 3 + tensor) * blockDim.x + threadIdx.x);
  };
  auto copy = [&](int64_t r, int stage) {
    __syncwarp();  // the compiler must not move this thread's reads of the buffer behind the copies
    if (active && r < p.rows) {
      const int64_t at = r * channels + c;
      copy_async(slot(stage, 0), static_cast<const T*>(p.s) + at, true);
      copy_async(slot(stage, 1), static_cast<const T*>(p.dy) + at, true);
      if (p.dsum) copy_async(slot(stage, 2), static_cast<const T*>(p.dsum) + at, true);
    }
    copy_commit();
  };
  float w[N] = {}, dweight[N] = {}, dbias[N] = {}, ds_sums[N] = {};
  if (active) load_floats<float, N>(p.weight + c, w);
  for (int i = 0; i < kStages * 3; ++i) {  // what no copy fills stays zero
    if (!active || (!p.dsum && i % 3 == 2)) *reinterpret_cast<uint4*>(slot(0, i)) = {};
  }
  float next_rstd = 0, next_mean = 0;  // a row ahead, since they come without a buffer
  auto load_statistics = [&](int64_t r) {
    if (r >= p.rows) return;
    next_rstd = p.rstd[r];
    if constexpr (kLayer) next_mean = p.mean[r];
  };
  load_statistics(blockIdx.x);
#pragma unroll
  for (int stage = 0; stage < kStages; ++stage) copy(blockIdx.x + stage * stride, stage);
  int turn = 0, stage = 0;
  for (int64_t r = blockIdx.x; r < p.rows; r += stride, turn ^= 1, stage = stage + 1 == kStages ? 0 : stage + 1) {
    const float scale = next_rstd, shift = -next_mean * next_rstd;
    load_statistics(r + stride);
    copy_wait<kStages - 1>();
    __syncwarp();  // nor its reads before the wait
    // n = (s - mean) * rstd, g = dy * weight, ds = rstd * (g - mean(g) - n * mean(g n)) + dsum
    float s[N], d[N], ds[N], sums[kValues] = {};
    unpack<T>(load_packed(slot(stage, 0)), s);
    unpack<T>(load_packed(slot(stage, 1)), d);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      float n = s[j] * scale + shift, g = d[j] * w[j];
      sums[0] += g * n;
      dweight[j] += d[j] * n;
      if constexpr (kLayer) {
        sums[1] += g;
        dbias[j] += d[j];
      }
    }
    float mine = warp_sums<kValues>(sums);
    if (lane % kParts == 0) shared[turn][warp][lane / kParts] = mine;
    __syncthreads();  // the other half of `shared` may still be read: the next turn writes that only after this barrier
    // Lane l sums value l % kValues over every kParts-th warp, then the lanes of a value add theirs up.
    mine = 0;
#pragma unroll
    for (int first_warp = 0; first_warp < kMaxThreads / 32; first_warp += kParts) {
      int other = first_warp + lane / kValues;
      if (other < num_warps) mine += shared[turn][other][lane % kValues];
    }
#pragma unroll
    for (int step = kValues; step < 32; step *= 2) mine += __shfl_xor_sync(0xffffffffu, mine, step);
    const float by_n = -scale * __shfl_sync(0xffffffffu, mine, 0) * inverse_channels;
    float by_mean = 0;
    if constexpr (kLayer) by_mean = -scale * __shfl_sync(0xffffffffu, mine, 1) * inverse_channels;
    // rstd * g + n * by_n + by_mean, with n = s * scale + shift multiplied out
    const float by_s = scale * by_n, constant = shift * by_n + by_mean;
    unpack<T>(load_packed(slot(stage, 0)), s);  // again: cheaper than registers over the barrier
    unpack<T>(load_packed(slot(stage, 1)), d);
    unpack<T>(load_packed(slot(stage, 2)), ds);
    if (active) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        ds[j] += d[j] * w[j] * scale + (s[j] * by_s + constant);
        if constexpr (kLayer) ds_sums[j] += ds[j];
      }
      store_floats<T, N>(static_cast<T*>(p.ds) + r * channels + c, ds);
    }
    copy(r + kStages * stride, stage);
  }
  if (!active) return;
  float* out = p.partials + int64_t{blockIdx.x} * kArrays * channels + c;
  store_floats<float, N>(out, dweight);
  if constexpr (kLayer) {
    store_floats<float, N>(out + channels, dbias);
    store_floats<float, N>(out + 2 * channels, ds_sums);
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
int64_t resident_blocks(Stream& stream, Kernel kernel, unsigned threads, int64_t rows, int64_t most_per_sm,
                        size_t shared_bytes = 0) {
  int per_sm = 0;
  SINTER_CUDA_CHECK(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, static_cast<int>(threads), shared_bytes));
  return std::min<int64_t>(rows, std::min<int64_t>(std::max(per_sm, 1), most_per_sm) * num_multiprocessors(stream));
}

template <class T>
void launch_forward(Stream& stream, const ForwardParams& p, bool vector) {
  int64_t vectors = p.channels / kWidth<T>;
  if (!vector || vectors > 1024) {
    launch_overlapping(stream, may_overlap(p.rows), forward_any_kernel<T>, dim3(static_cast<unsigned>(p.rows)), 256, 0,
                       p);
  } else if (vectors <= 32 * 8) {
    with_vectors(div_up(vectors, 32), std::integer_sequence<int, 1, 2, 3, 4, 5, 6, 7, 8>{}, [&](auto count) {
      launch_overlapping(stream, may_overlap(p.rows), forward_warp_kernel<T, decltype(count)::value>,
                         dim3(grid_for(stream, p.rows, kWarps, 32)), 32 * kWarps, 0, p);
    });
  } else {
    unsigned threads = block_for(vectors);
    int64_t blocks = resident_blocks(stream, forward_block_kernel<T>, threads, p.rows, 32);
    launch_overlapping(stream, may_overlap(p.rows), forward_block_kernel<T>, dim3(static_cast<unsigned>(blocks)),
                       threads, 0, p);
  }
  SINTER_CUDA_LAUNCHED();
}

// Returns the number of groups of partial sums written.
template <class T, bool kLayer>
int64_t launch_backward(Stream& stream, BackwardParams p, bool vector) {
  int64_t vectors = p.channels / kWidth<T>, groups = 0;
  auto with_partials = [&](int64_t count) {
    groups = count;
    p.partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * kArrays * count * p.channels));
  };
  auto launch = [&](auto kernel) {
    unsigned threads = block_for(vectors);
    size_t shared_bytes = sizeof(uint4) * kStages * 3 * threads;
    SINTER_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
    with_partials(resident_blocks(stream, kernel, threads, p.rows, 8, shared_bytes));
    kernel<<<static_cast<unsigned>(groups), threads, shared_bytes, native(stream)>>>(p);
  };
  if (!vector) {
    with_partials(std::min<int64_t>(p.rows, 64));
    dim3 grid(static_cast<unsigned>(div_up(p.channels, 256)), static_cast<unsigned>(groups));
    backward_weight_any_kernel<T><<<grid, 256, 0, native(stream)>>>(p);
    SINTER_CUDA_LAUNCHED();
    backward_any_kernel<T><<<static_cast<unsigned>(p.rows), 256, 0, native(stream)>>>(p);
  } else if (vectors <= 256) {
    launch(backward_block_kernel<T, kLayer, 256>);
  } else if (vectors <= 512) {
    launch(backward_block_kernel<T, kLayer, 512>);
  } else {
    launch(backward_block_kernel<T, kLayer, 1024>);
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
  bool is_layer = args.kind == spec::NormKind::layer, vector = true;
  SINTER_CHECK(is_layer || !args.dbias, "[norm_backward] a bias with RMSNorm is not supported on CUDA");
  int64_t groups = 0;
  dispatch_format(args.s.dtype(), "norm_backward", [&]<class T>(TypeTag<T>) {
    vector = channels % kWidth<T> == 0 && channels / kWidth<T> <= 1024;
    for (const Tensor* t : {&args.dy, &args.dsum, &args.s, &args.weight, &args.ds})
      vector = vector && is_aligned(t->raw());
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
    groups = is_layer ? launch_backward<T, true>(stream, p, vector) : launch_backward<T, false>(stream, p, vector);
  });
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, 0));
  const bool has_ds_sums = vector && is_layer;  // models with RMSNorm have no biases before it
  reduce_partial_arrays(
      stream, partials, groups, channels,
      {kArrays,
       {args.dweight.data<float>(), args.dbias.data<float>(), has_ds_sums ? args.ds_sums.data<float>() : nullptr}});
  if (args.ds_sums && !has_ds_sums) column_sum(stream, {.x = args.ds, .y = args.ds_sums, .accumulate = true});
}

}  // namespace sinter::kernels::cuda
