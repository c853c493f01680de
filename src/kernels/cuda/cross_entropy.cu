// Softmax cross entropy with its gradient in place of the logits: one pass finds the sum of exponentials (online
// softmax), a second reads the row again, from the L2 cache while few enough blocks run at once, and writes the
// gradient. (Keeping the row in shared memory was slower on an H200: 128 and 215 us per 1,000 rows of 50,304
// beside 70.)
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAtOnce = 4;  // vectors of a thread in flight
constexpr float kLog2e = 1.4426950408889634f;

// 2^x; of 16-bit formats by the hardware's approximation, whose error (2^-22) is far under their rounding.
template <class T>
__device__ __forceinline__ float power_of_two(float x) {
  if constexpr (sizeof(T) == 4) return exp2f(x);
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Running (largest, sum of 2^(x - largest)) in base 2.
struct Online {
  float largest = -INFINITY, sum = 0;
  __device__ __forceinline__ void merge(float other_largest, float other_sum) {
    float top = fmaxf(largest, other_largest);
    if (top == -INFINITY) return;
    sum = sum * exp2f(largest - top) + other_sum * exp2f(other_largest - top);
    largest = top;
  }
};

__device__ __forceinline__ float log_sum_of_block(Online mine) {
  __shared__ float shared_largest[kThreads / 32], shared_sum[kThreads / 32];
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    float largest = __shfl_xor_sync(0xffffffffu, mine.largest, step),
          sum = __shfl_xor_sync(0xffffffffu, mine.sum, step);
    mine.merge(largest, sum);
  }
  if (threadIdx.x % 32 == 0) {
    shared_largest[threadIdx.x / 32] = mine.largest;
    shared_sum[threadIdx.x / 32] = mine.sum;
  }
  __syncthreads();
  Online all;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) all.merge(shared_largest[w], shared_sum[w]);
  return all.largest + log2f(all.sum);  // in base 2
}

// A row need not start on a 16-byte boundary (odd vocabularies): its first elements up to the boundary and the last
// ones after it are taken one by one, the rest in vectors.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, const int32_t* targets, float* losses, const float* scale, int64_t vocab,
                         bool write_gradient) {
  constexpr int N = kWidth<T>;
  int64_t r = blockIdx.x;
  T* row = logits + r * vocab;
  int64_t head = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  if (head > vocab) head = vocab;
  int64_t vectors = (vocab - head) / N, tail = head + vectors * N;
  T* body = row + head;
  int32_t target = targets[r];
  // The elements outside the vectors: at most 2 N - 2, one a thread.
  int64_t edge = threadIdx.x < head ? threadIdx.x : tail + (threadIdx.x - head);
  bool has_edge = threadIdx.x < head || edge < vocab;
  if (target < 0 || target >= vocab) {
    if (threadIdx.x == 0) losses[r] = 0;
    if (!write_gradient) return;
    Vector<T, N> zero{};
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) reinterpret_cast<Vector<T, N>*>(body)[i] = zero;
    if (has_edge) row[edge] = from_float<T>(0.0f);
    return;
  }
  float target_logit = threadIdx.x == 0 ? to_float(row[target]) : 0.0f;
  Online online;
  if (has_edge) online.merge(to_float(row[edge]) * kLog2e, 1.0f);
  for (int64_t i = threadIdx.x; i < vectors; i += kAtOnce * kThreads) {
    Packed raw[kAtOnce];
    float largest = -INFINITY, sum = 0;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * kThreads < vectors) raw[u] = load_packed(body + (i + u * kThreads) * N);
    }
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * kThreads >= vectors) continue;
      float x[N];
      unpack<T>(raw[u], x);
#pragma unroll
      for (int j = 0; j < N; ++j) largest = fmaxf(largest, x[j]);
    }
    float top = fmaxf(online.largest, largest * kLog2e);
    if (top == -INFINITY) continue;  // all of it masked
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      if (i + u * kThreads >= vectors) continue;
      float x[N];
      unpack<T>(raw[u], x);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += power_of_two<T>(x[j] * kLog2e - top);
    }
    online.sum = online.sum * power_of_two<T>(online.largest - top) + sum;
    online.largest = top;
  }
  float log_sum = log_sum_of_block(online);
  if (threadIdx.x == 0) losses[r] = log_sum / kLog2e - target_logit;
  if (!write_gradient) return;
  float factor = scale[0];
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    float x[N];
    unpack<T>(load_packed(body + i * N), x);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = power_of_two<T>(x[j] * kLog2e - log_sum) * factor;
    const int64_t hit = target - head - i * N;
    if (hit >= 0 && hit < N) {
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] -= j == static_cast<int>(hit) ? factor : 0.0f;
    }
    store_floats<T, N>(body + i * N, x);
  }
  if (has_edge) {
    row[edge] =
        from_float<T>((exp2f(to_float(row[edge]) * kLog2e - log_sum) - (edge == target ? 1.0f : 0.0f)) * factor);
  }
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  int64_t rows = args.logits.rows(), vocab = args.logits.size(-1);
  if (rows == 0) return;
  dispatch_format(args.logits.dtype(), "cross_entropy", [&]<class T>(TypeTag<T>) {
    cross_entropy_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
        args.logits.data<T>(), args.targets.data<int32_t>(), args.losses.data<float>(), args.scale.data<float>(), vocab,
        args.write_gradient);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
