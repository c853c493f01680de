// Sums in a fixed order: partial sums over groups of rows, column sums, squares; the clipping decision.
#include "kernels/cuda/reductions.cuh"

namespace sinter::kernels::cuda {
namespace {

// 32 columns a block; 32 chains of groups a column, then their sum in order.
__global__ void reduce_partials_kernel(const float* partials, int64_t groups, int64_t columns, int64_t row_stride,
                                       PartialSums sums, bool accumulate) {
  __shared__ float chains[32][33];
  partials += blockIdx.y * columns;  // array y of each group
  float* y = sums.y[blockIdx.y];
  if (!y) return;
  int64_t column = int64_t{blockIdx.x} * 32 + threadIdx.x;
  float sum = 0;
  if (column < columns) {
    constexpr int kAhead = 16;  // loads in flight: their latency is all this kernel takes
    for (int64_t g = threadIdx.y; g < groups; g += 32 * kAhead) {
      float x[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) x[i] = g + 32 * i < groups ? partials[(g + 32 * i) * row_stride + column] : 0.0f;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sum += x[i];
    }
  }
  chains[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(chains[threadIdx.x][threadIdx.y]);  // transposed: each warp sums the chains of one column
  int64_t mine = int64_t{blockIdx.x} * 32 + threadIdx.y;
  if (threadIdx.x == 0 && mine < columns) y[mine] = accumulate ? y[mine] + sum : sum;
}

constexpr int kWarps = 8;

// Partial column sums: a block takes 32 * N columns and every gridDim.y-th group of kWarps rows.
template <class T, int N>
__global__ void __launch_bounds__(32 * kWarps)
    column_sum_kernel(const T* x, int64_t rows, int64_t columns, float* partials) {
  __shared__ float shared[kWarps][32 * N];
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int64_t column = (int64_t{blockIdx.x} * 32 + lane) * N;
  float sum[N] = {};
  if (column < columns) {
    int64_t stride = int64_t{gridDim.y} * kWarps;
    int64_t r = int64_t{blockIdx.y} * kWarps + warp;
    for (; r + 3 * stride < rows; r += 4 * stride) {  // four loads in flight
      float a[4][N];
#pragma unroll
      for (int u = 0; u < 4; ++u) load_floats<T, N>(x + (r + u * stride) * columns + column, a[u]);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
#pragma unroll
        for (int j = 0; j < N; ++j) sum[j] += a[u][j];
      }
    }
    for (; r < rows; r += stride) {
      float a[N];
      load_floats<T, N>(x + r * columns + column, a);
#pragma unroll
      for (int j = 0; j < N; ++j) sum[j] += a[j];
    }
  }
#pragma unroll
  for (int j = 0; j < N; ++j) shared[warp][j * 32 + lane] = sum[j];
  __syncthreads();
  for (int i = threadIdx.x; i < 32 * N; i += 32 * kWarps) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) total += shared[w][i];
    int64_t at = (int64_t{blockIdx.x} * 32 + i % 32) * N + i / 32;
    if (at < columns) partials[int64_t{blockIdx.y} * columns + at] = total;
  }
}

constexpr int kSquareBlocks = 1024, kSquareThreads = 512;

template <class T, int N>
__global__ void __launch_bounds__(kSquareThreads) sum_squares_kernel(const T* x, int64_t count, float* partials) {
  __shared__ float shared[kSquareThreads / 32];
  float sum = 0;
  int64_t vectors = count / N, stride = int64_t{kSquareBlocks} * kSquareThreads;
  for (int64_t i = int64_t{blockIdx.x} * kSquareThreads + threadIdx.x; i < vectors; i += stride) {
    float a[N];
    load_floats<T, N>(x + i * N, a);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += a[j] * a[j];
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    for (int64_t i = vectors * N; i < count; ++i) sum += to_float(x[i]) * to_float(x[i]);
  }
  sum = block_sum<kSquareThreads>(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void permute_rows_kernel(const float* from, float* to, int64_t a, int64_t b, int64_t count) {
  int64_t row = blockIdx.x, i = row / b, j = row % b;
  for (int64_t c = threadIdx.x; c < count; c += blockDim.x) to[(j * a + i) * count + c] = from[row * count + c];
}

constexpr int kSumBlocks = 64, kSumThreads = 256;

__device__ __forceinline__ double block_sum_f64(double x, double* shared) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  __syncthreads();
  double sum = 0;
#pragma unroll
  for (int w = 0; w < kSumThreads / 32; ++w) sum += shared[w];
  return sum;
}

__global__ void __launch_bounds__(kSumThreads) sum_kernel(const float* x, int64_t count, double* partials) {
  __shared__ double shared[kSumThreads / 32];
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; i < count; i += int64_t{kSumBlocks} * kSumThreads)
    sum += static_cast<double>(x[i]);
  sum = block_sum_f64(sum, shared);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kSumThreads) sum_partials_kernel(const double* partials, float* total) {
  __shared__ double shared[kSumThreads / 32];
  double sum = block_sum_f64(threadIdx.x < kSumBlocks ? partials[threadIdx.x] : 0.0, shared);
  if (threadIdx.x == 0) total[0] = static_cast<float>(sum);
}

__global__ void step_control_kernel(StepRule rule, const float* loss_sum, float loss_factor, const float* norm_squared,
                                    float* state, float* control, float* record) {
  decide_step(rule, loss_sum[0] * loss_factor, norm_squared[0], state, control, record);
}

}  // namespace

void reduce_partials(Stream& stream, const float* partials, int64_t groups, int64_t columns, int64_t row_stride,
                     float* y, bool accumulate) {
  unsigned grid = static_cast<unsigned>(div_up(columns, 32));
  reduce_partials_kernel<<<grid, dim3(32, 32), 0, native(stream)>>>(partials, groups, columns, row_stride, {1, {y}},
                                                                    accumulate);
  SINTER_CUDA_LAUNCHED();
}

void reduce_partial_arrays(Stream& stream, const float* partials, int64_t groups, int64_t columns,
                           const PartialSums& sums) {
  dim3 grid(static_cast<unsigned>(div_up(columns, 32)), static_cast<unsigned>(sums.num_arrays));
  reduce_partials_kernel<<<grid, dim3(32, 32), 0, native(stream)>>>(partials, groups, columns,
                                                                    sums.num_arrays * columns, sums, true);
  SINTER_CUDA_LAUNCHED();
}

void column_sum(Stream& stream, const ColumnSumArgs& args) {
  int64_t columns = args.y.num_elements(), rows = args.x.rows();
  if (columns == 0) return;
  dispatch_format(args.x.dtype(), "column_sum", [&]<class T>(TypeTag<T>) {
    constexpr int kN = kWidth<T>;
    bool vector = columns % kN == 0 && is_aligned(args.x.raw());
    int64_t blocks_x = div_up(columns, 32 * (vector ? kN : 1));
    int64_t groups =
        std::min<int64_t>(div_up(rows, kWarps), std::max<int64_t>(1, 8 * num_multiprocessors(stream) / blocks_x));
    groups = std::max<int64_t>(groups, 1);
    auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * groups * columns));
    dim3 grid(static_cast<unsigned>(blocks_x), static_cast<unsigned>(groups));
    if (vector) {
      column_sum_kernel<T, kN><<<grid, 32 * kWarps, 0, native(stream)>>>(args.x.data<T>(), rows, columns, partials);
    } else {
      column_sum_kernel<T, 1><<<grid, 32 * kWarps, 0, native(stream)>>>(args.x.data<T>(), rows, columns, partials);
    }
    SINTER_CUDA_LAUNCHED();
    reduce_partials(stream, partials, groups, columns, columns, args.y.data<float>(), args.accumulate);
  });
}

void sum_squares(Stream& stream, const SumSquaresArgs& args) {
  int64_t count = args.x.num_elements();
  auto* partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * kSquareBlocks));
  dispatch_format(args.x.dtype(), "sum_squares", [&]<class T>(TypeTag<T>) {
    const T* x = args.x.data<T>();
    if (is_aligned(x)) {
      sum_squares_kernel<T, kWidth<T>><<<kSquareBlocks, kSquareThreads, 0, native(stream)>>>(x, count, partials);
    } else {
      sum_squares_kernel<T, 1><<<kSquareBlocks, kSquareThreads, 0, native(stream)>>>(x, count, partials);
    }
  });
  SINTER_CUDA_LAUNCHED();
  reduce_partials(stream, partials, kSquareBlocks, 1, 1, args.total.data<float>(), true);
}

void sum(Stream& stream, const SumArgs& args) {
  auto* partials = static_cast<double*>(scratch(stream, Scratch::partials, sizeof(double) * kSumBlocks));
  sum_kernel<<<kSumBlocks, kSumThreads, 0, native(stream)>>>(args.x.data<float>(), args.x.num_elements(), partials);
  sum_partials_kernel<<<1, kSumThreads, 0, native(stream)>>>(partials, args.total.data<float>());
  SINTER_CUDA_LAUNCHED();
}

void step_control(Stream& stream, const StepControlArgs& args) {
  step_control_kernel<<<1, 1, 0, native(stream)>>>(args.rule, args.loss_sum.data<float>(), args.loss_factor,
                                                   args.norm_squared.data<float>(), args.state.data<float>(),
                                                   args.control.data<float>(), args.record.data<float>());
  SINTER_CUDA_LAUNCHED();
}

void permute_rows(Stream& stream, const float* from, float* to, int64_t a, int64_t b, int64_t count) {
  permute_rows_kernel<<<static_cast<unsigned>(a * b), 256, 0, native(stream)>>>(from, to, a, b, count);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
