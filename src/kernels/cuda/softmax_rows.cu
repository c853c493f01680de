// What goes around the product with the softmax's terms: the rows' shifts before it, the losses and factors after it.
// For bf16, C a multiple of 8.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/softmax_rows.h"

namespace sinter::kernels::cuda {
namespace {

using T = bfloat16;
constexpr int N = kWidth<T>;
constexpr int kThreads = 256;

__device__ __forceinline__ bool is_target(int32_t t, int64_t vocab) { return t >= 0 && t < vocab; }

// A warp a row.
__global__ void __launch_bounds__(kThreads)
    target_shifts_kernel(const T* x, const T* weight, const int32_t* targets, float* shifts, int64_t rows,
                         int64_t channels, int64_t vocab) {
  int64_t r = (int64_t{blockIdx.x} * kThreads + threadIdx.x) / 32;
  if (r >= rows) return;
  int32_t target = targets[r];
  if (!is_target(target, vocab)) {
    if (threadIdx.x % 32 == 0) shifts[r] = INFINITY;
    return;
  }
  float sum = 0;
  for (int64_t c = threadIdx.x % 32 * N; c < channels; c += 32 * N) {
    float a[N], b[N];
    load_floats<T, N>(x + r * channels + c, a);
    load_floats<T, N>(weight + target * channels + c, b);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += a[j] * b[j];
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) shifts[r] = sum * kLog2e;
}

// A block takes kRows rows: kParts threads a row add up its sums, then all scale its x.
constexpr int kRows = 16, kParts = kThreads / kRows;
__global__ void __launch_bounds__(kThreads)
    finish_softmax_kernel(const float* sums, int64_t tiles, float* losses, const float* scale, const float* weights,
                          float* factors, float* target_factors, const T* x, T* scaled_x, int64_t rows,
                          int64_t channels) {
  __shared__ float shared[kParts][kRows];
  __shared__ float factor[kRows];
  const int64_t first = int64_t{blockIdx.x} * kRows;
  {
    const int row = threadIdx.x % kRows, part = threadIdx.x / kRows;
    float sum = 0;
    if (first + row < rows) {
#pragma unroll 8
      for (int64_t tile = part; tile < tiles; tile += kParts) sum += sums[tile * rows + first + row];
    }
    shared[part][row] = sum;
  }
  __syncthreads();
  if (threadIdx.x < kRows && first + threadIdx.x < rows) {
    float sum = 0;
#pragma unroll
    for (int part = 0; part < kParts; ++part) sum += shared[part][threadIdx.x];
    const float weight = weights ? weights[first + threadIdx.x] : 1.0f;
    losses[first + threadIdx.x] = weight * log1pf(sum);
    if (scaled_x) {
      float share = weight * scale[0] / (1.0f + sum);
      factor[threadIdx.x] = factors[first + threadIdx.x] = share;
      target_factors[first + threadIdx.x] = -share * sum;
    }
  }
  if (!scaled_x) return;
  __syncthreads();
  const int64_t here = min(int64_t{kRows}, rows - first), row_vectors = channels / N;
  for (int64_t i = threadIdx.x; i < here * row_vectors; i += kThreads) {
    float a[N];
    load_floats<T, N>(x + first * channels + i * N, a);
    float share = factor[i / row_vectors];
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] *= share;
    store_floats<T, N>(scaled_x + first * channels + i * N, a);
  }
}

__global__ void __launch_bounds__(kThreads)
    finish_input_gradient_kernel(const float* product, const T* weight, const int32_t* targets, const float* factors,
                                 const float* target_factors, T* dx, int64_t rows, int64_t channels, int64_t vocab) {
  const int64_t row_vectors = channels / N;
  int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * row_vectors) return;
  const int64_t r = i / row_vectors, c = (i - r * row_vectors) * N;
  const int32_t target = targets[r];
  float a[N], b[N] = {};
  load_floats<float, N>(product + i * N, a);
  if (is_target(target, vocab)) load_floats<T, N>(weight + target * channels + c, b);
  const float factor = factors[r], target_factor = target_factors[r];
#pragma unroll
  for (int j = 0; j < N; ++j) a[j] = factor * a[j] + target_factor * b[j];
  store_floats<T, N>(dx + i * N, a);
}

unsigned blocks_for(int64_t count, int64_t per_block) { return static_cast<unsigned>(div_up(count, per_block)); }

}  // namespace

void target_shifts(Stream& stream, const SoftmaxTerms& args) {
  const int64_t rows = args.x.rows();
  target_shifts_kernel<<<blocks_for(rows * 32, kThreads), kThreads, 0, native(stream)>>>(
      args.x.data<T>(), args.weight.data<T>(), args.targets.data<int32_t>(), args.shifts.data<float>(), rows,
      args.x.size(-1), args.weight.size(0));
  SINTER_CUDA_LAUNCHED();
}

void finish_softmax(Stream& stream, const SoftmaxRows& args) {
  const int64_t rows = args.losses.num_elements();
  finish_softmax_kernel<<<blocks_for(rows, kRows), kThreads, 0, native(stream)>>>(
      args.sums.data<float>(), args.sums.size(0), args.losses.data<float>(), args.scale.data<float>(),
      args.weights.data<float>(), args.factors.data<float>(), args.target_factors.data<float>(), args.x.data<T>(),
      args.scaled_x.data<T>(), rows, args.x.size(-1));
  SINTER_CUDA_LAUNCHED();
}

void finish_input_gradient(Stream& stream, const SoftmaxInputGradient& args) {
  const int64_t rows = args.dx.rows(), channels = args.dx.size(-1);
  finish_input_gradient_kernel<<<blocks_for(rows * (channels / N), kThreads), kThreads, 0, native(stream)>>>(
      args.product.data<float>(), args.weight.data<T>(), args.targets.data<int32_t>(), args.factors.data<float>(),
      args.target_factors.data<float>(), args.dx.data<T>(), rows, channels, args.weight.size(0));
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
