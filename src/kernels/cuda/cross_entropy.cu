// Softmax cross entropy with its gradient in place of the logits: one pass finds the sum of exponentials (online
// softmax) and keeps the row in shared memory, a second writes the gradient from there. So a row crosses device memory
// once each way. (Left to the L2 cache, the rows of 528 blocks at 100 KB each do not fit: the row was read twice and
// the kernel ran at two thirds of the copy bandwidth.) Rows too long for shared memory are read again.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr size_t kMaxRowBytes = 112 << 10;  // two rows fit a Hopper multiprocessor (one, of sm_80's 164 KB)
constexpr float kLog2e = 1.4426950408889634f;

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
template <class T, bool kKeepsRow>
__global__ void __launch_bounds__(kThreads, 2)
    cross_entropy_kernel(T* logits, const int32_t* targets, float* losses, const float* scale, int64_t vocab,
                         bool write_gradient) {
  constexpr int N = kWidth<T>;
  extern __shared__ __align__(16) unsigned char shared_row[];
  auto* kept = reinterpret_cast<Vector<T, N>*>(shared_row);
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
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    Vector<T, N> raw = *reinterpret_cast<const Vector<T, N>*>(body + i * N);
    if constexpr (kKeepsRow) kept[i] = raw;  // read back by this thread alone
    float x[N];
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = to_float(raw.v[j]);
    float largest = x[0];
#pragma unroll
    for (int j = 1; j < N; ++j) largest = fmaxf(largest, x[j]);
    float top = fmaxf(online.largest, largest * kLog2e), sum = 0;
    if (top == -INFINITY) continue;  // all of it masked
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exp2f(x[j] * kLog2e - top);
    online.sum = online.sum * exp2f(online.largest - top) + sum;
    online.largest = top;
  }
  float log_sum = log_sum_of_block(online);
  if (threadIdx.x == 0) losses[r] = log_sum / kLog2e - target_logit;
  if (!write_gradient) return;
  float factor = scale[0];
#pragma unroll 2
  for (int64_t i = threadIdx.x; i < vectors; i += kThreads) {
    Vector<T, N> raw = kKeepsRow ? kept[i] : *reinterpret_cast<const Vector<T, N>*>(body + i * N);
    float x[N];
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = to_float(raw.v[j]);
    int64_t first = head + i * N;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      x[j] = (exp2f(x[j] * kLog2e - log_sum) - (first + j == target ? 1.0f : 0.0f)) * factor;
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
    auto launch = [&](auto kernel, size_t shared_bytes) {
      SINTER_CUDA_CHECK(
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)));
      kernel<<<static_cast<unsigned>(rows), kThreads, shared_bytes, native(stream)>>>(
          args.logits.data<T>(), args.targets.data<int32_t>(), args.losses.data<float>(), args.scale.data<float>(),
          vocab, args.write_gradient);
    };
    size_t row_bytes = (static_cast<size_t>(vocab) * sizeof(T) + 15) / 16 * 16;
    if (args.write_gradient && row_bytes <= kMaxRowBytes) {
      launch(cross_entropy_kernel<T, true>, row_bytes);
    } else {
      launch(cross_entropy_kernel<T, false>, 0);
    }
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
