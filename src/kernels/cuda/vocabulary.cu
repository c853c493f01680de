// Cross entropy over a vocabulary that several ranks share: a block takes a row of this rank's logits.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kRowThreads = 256;

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    softmax_terms_kernel(const T* logits, const int32_t* targets, int64_t first, float* terms, int64_t vocab) {
  __shared__ float shared[kThreads / 32];
  const int64_t r = blockIdx.x;
  const T* row = logits + r * vocab;
  float largest = -INFINITY;
  for (int64_t v = int64_t{threadIdx.x} * N; v < vocab; v += int64_t{kThreads} * N) {
    float x[N];
    load_floats<T, N>(row + v, x);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, x[j]);
  }
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
  __syncthreads();
  largest = warp_max(shared[threadIdx.x % (kThreads / 32)]);
  __syncthreads();
  float sum = 0;
  for (int64_t v = int64_t{threadIdx.x} * N; v < vocab; v += int64_t{kThreads} * N) {
    float x[N];
    load_floats<T, N>(row + v, x);
#pragma unroll
    for (int j = 0; j < N; ++j) sum += exp2f((x[j] - largest) * kLog2e);
  }
  sum = block_sum<kThreads>(sum, shared);
  if (threadIdx.x != 0) return;
  const int64_t target = int64_t{targets[r]} - first;
  float* to = terms + r * SoftmaxTermsArgs::kTerms;
  to[0] = largest;
  to[1] = sum;
  to[2] = target >= 0 && target < vocab ? to_float(row[target]) : 0.0f;
}

// terms: (P, R, 3), of all ranks.
__global__ void softmax_loss_kernel(const float* terms, const int32_t* targets, float* lse, float* losses,
                                    const float* weights, int64_t rows, int64_t parts) {
  const int64_t r = int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (r >= rows) return;
  float largest = -INFINITY, sum = 0, target = 0;
  for (int64_t p = 0; p < parts; ++p) largest = fmaxf(largest, terms[(p * rows + r) * SoftmaxTermsArgs::kTerms]);
  for (int64_t p = 0; p < parts; ++p) {
    const float* from = terms + (p * rows + r) * SoftmaxTermsArgs::kTerms;
    if (from[1] > 0) sum += from[1] * expf(from[0] - largest);
    target += from[2];
  }
  const float log_sum = largest + logf(sum);
  lse[r] = log_sum;
  losses[r] = targets[r] < 0 ? 0.0f : (weights ? weights[r] : 1.0f) * (log_sum - target);
}

template <class T, int N>
__global__ void __launch_bounds__(kThreads)
    softmax_gradient_kernel(T* logits, const int32_t* targets, int64_t first, const float* lse, const float* scale,
                            const float* weights, int64_t vocab) {
  const int64_t r = blockIdx.x;
  T* row = logits + r * vocab;
  const bool is_supervised = targets[r] >= 0;
  const int64_t target = int64_t{targets[r]} - first;
  const float factor = weights ? scale[0] * weights[r] : scale[0], log_sum = lse[r];
  for (int64_t v = int64_t{threadIdx.x} * N; v < vocab; v += int64_t{kThreads} * N) {
    float x[N];
    load_floats<T, N>(row + v, x);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float p = exp2f((x[j] - log_sum) * kLog2e) - (v + j == target ? 1.0f : 0.0f);
      x[j] = is_supervised ? p * factor : 0.0f;
    }
    store_floats<T, N>(row + v, x);
  }
}

// Calls launch with the elements of a vector, or 1 where a row does not begin on one.
template <class T, class Launch>
void by_width(const Tensor& logits, Launch&& launch) {
  logits.size(-1) % kWidth<T> == 0 && is_aligned(logits.raw()) ? launch(std::integral_constant<int, kWidth<T>>{})
                                                               : launch(std::integral_constant<int, 1>{});
}

}  // namespace

void softmax_terms(Stream& stream, const SoftmaxTermsArgs& args) {
  const int64_t rows = args.logits.rows();
  if (rows == 0) return;
  dispatch_format(args.logits.dtype(), "softmax_terms", [&]<class T>(TypeTag<T>) {
    by_width<T>(args.logits, [&]<int N>(std::integral_constant<int, N>) {
      softmax_terms_kernel<T, N><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
          args.logits.data<T>(), args.targets.data<int32_t>(), args.first, args.terms.data<float>(),
          args.logits.size(-1));
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void softmax_loss(Stream& stream, const SoftmaxLossArgs& args) {
  const int64_t rows = args.lse.num_elements();
  if (rows == 0) return;
  softmax_loss_kernel<<<static_cast<unsigned>(div_up(rows, kRowThreads)), kRowThreads, 0, native(stream)>>>(
      args.terms.data<float>(), args.targets.data<int32_t>(), args.lse.data<float>(), args.losses.data<float>(),
      args.weights.data<float>(), rows, args.terms.size(0));
  SINTER_CUDA_LAUNCHED();
}

void softmax_gradient(Stream& stream, const SoftmaxGradientArgs& args) {
  const int64_t rows = args.logits.rows();
  if (rows == 0) return;
  dispatch_format(args.logits.dtype(), "softmax_gradient", [&]<class T>(TypeTag<T>) {
    by_width<T>(args.logits, [&]<int N>(std::integral_constant<int, N>) {
      softmax_gradient_kernel<T, N><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
          args.logits.data<T>(), args.targets.data<int32_t>(), args.first, args.lse.data<float>(),
          args.scale.data<float>(), args.weights.data<float>(), args.logits.size(-1));
    });
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
