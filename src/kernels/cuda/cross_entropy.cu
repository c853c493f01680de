// Softmax cross entropy with its gradient in place of the logits: one pass finds the sum of exponentials (online
// softmax), a second reads the row again, from the L2 cache while few enough blocks run at once, and writes the
// gradient. (Keeping the row in shared memory was slower on an H200: 128 and 215 us per 1,000 rows of 50,304
// beside 70.)
#include "kernels/batch_invariance.h"
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kAtOnce = 4;  // vectors of a thread in flight

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
// ones after it are taken one by one, the rest in vectors. So are the `apart` elements of a second piece.
template <class T>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, int64_t split, T* last_logits, int64_t apart, const int32_t* targets, float* losses,
                         const float* scale, const float* weights, bool write_gradient) {
  constexpr int N = kWidth<T>;
  static_assert(2 * N + CrossEntropyArgs::kMostApart <= kThreads);
  int64_t r = blockIdx.x;
  T *row = logits + r * split, *last = last_logits + r * apart;
  int64_t head = static_cast<int64_t>((16 - reinterpret_cast<uintptr_t>(row) % 16) % 16 / sizeof(T));
  if (head > split) head = split;
  int64_t vectors = (split - head) / N, tail = head + vectors * N;
  T* body = row + head;
  int32_t target = targets[r];
  // The elements outside the vectors, one a thread.
  int64_t edge = threadIdx.x < head ? threadIdx.x : tail + (threadIdx.x - head);
  bool has_edge = threadIdx.x < head || edge < split + apart;
  auto at = [&](int64_t column) -> T& { return column < split ? row[column] : last[column - split]; };
  if (target < 0 || target >= split + apart) {
    if (threadIdx.x == 0) losses[r] = 0;
    if (!write_gradient) return;
    Vector<T, N> zero{};
    for (int64_t i = threadIdx.x; i < vectors; i += kThreads) reinterpret_cast<Vector<T, N>*>(body)[i] = zero;
    if (has_edge) at(edge) = from_float<T>(0.0f);
    return;
  }
  float target_logit = threadIdx.x == 0 ? to_float(at(target)) : 0.0f;
  Online online;
  if (has_edge) online.merge(to_float(at(edge)) * kLog2e, 1.0f);
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
  if (threadIdx.x == 0) losses[r] = (log_sum / kLog2e - target_logit) * (weights ? weights[r] : 1.0f);
  if (!write_gradient) return;
  float factor = weights ? scale[0] * weights[r] : scale[0];
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
    const float p = exp2f(to_float(at(edge)) * kLog2e - log_sum);
    at(edge) = from_float<T>((p - (edge == target ? 1.0f : 0.0f)) * factor);
  }
}

// The same without a part for where a row begins, which changes from row to row in odd vocabularies: a thread takes
// every kThreads-th element.
template <class T>
__global__ void __launch_bounds__(kThreads)
    invariant_cross_entropy_kernel(T* logits, int64_t split, T* last_logits, int64_t apart, const int32_t* targets,
                                   float* losses, const float* scale, const float* weights, bool write_gradient) {
  const int64_t r = blockIdx.x;
  auto at = [&](int64_t c) -> T& { return c < split ? logits[r * split + c] : last_logits[r * apart + c - split]; };
  const int32_t target = targets[r];
  const bool is_supervised = target >= 0 && target < split + apart;
  if (!is_supervised && threadIdx.x == 0) losses[r] = 0;
  float log_sum = 0;
  if (is_supervised) {
    const float target_logit = to_float(at(target));
    Online online;
    for (int64_t c = threadIdx.x; c < split + apart; c += kThreads) online.merge(to_float(at(c)) * kLog2e, 1.0f);
    log_sum = log_sum_of_block(online);
    if (threadIdx.x == 0) losses[r] = (log_sum / kLog2e - target_logit) * (weights ? weights[r] : 1.0f);
  }
  if (!write_gradient) return;
  __syncthreads();  // every thread has read the target's logit
  const float factor = is_supervised ? (weights ? scale[0] * weights[r] : scale[0]) : 0.0f;
  for (int64_t c = threadIdx.x; c < split + apart; c += kThreads) {
    const float p = is_supervised ? exp2f(to_float(at(c)) * kLog2e - log_sum) : 0.0f;
    at(c) = from_float<T>((p - (c == target ? 1.0f : 0.0f)) * factor);
  }
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  const int64_t rows = args.logits.rows(), apart = args.last_logits ? args.last_logits.size(-1) : 0;
  if (rows == 0) return;
  SINTER_CHECK(apart <= CrossEntropyArgs::kMostApart, "[cross_entropy] {} columns apart; expected at most {}", apart,
               CrossEntropyArgs::kMostApart);
  dispatch_format(args.logits.dtype(), "cross_entropy", [&]<class T>(TypeTag<T>) {
    const auto kernel = is_batch_invariant() ? invariant_cross_entropy_kernel<T> : cross_entropy_kernel<T>;
    kernel<<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
        args.logits.data<T>(), args.logits.size(-1), args.last_logits.data<T>(), apart, args.targets.data<int32_t>(),
        args.losses.data<float>(), args.scale.data<float>(), args.weights.data<float>(), args.write_gradient);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
