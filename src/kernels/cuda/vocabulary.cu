// A vocabulary shared by several ranks, and dropout of rows that are not neighbours.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void vocab_embedding_kernel(const int32_t* tokens, const T* table, T* y, int64_t channels, int64_t vocab,
                                       int64_t first) {
  const int64_t row = tokens[blockIdx.x] - first;
  const bool is_here = row >= 0 && row < vocab;
  for (int64_t c = threadIdx.x; c < channels; c += blockDim.x)
    y[blockIdx.x * channels + c] = is_here ? table[row * channels + c] : from_float<T>(0.0f);
}

// Tokens of this range counted from its first; the others are `vocab`.
__global__ void local_tokens_kernel(const int32_t* tokens, int64_t count, int64_t first, int64_t vocab,
                                    int32_t* local) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const int64_t row = tokens[i] - first;
  local[i] = static_cast<int32_t>(row >= 0 && row < vocab ? row : vocab);
}

// Running (largest, sum of exp(x - largest)).
struct Terms {
  float largest = -INFINITY, sum = 0;
  __device__ __forceinline__ void merge(float other_largest, float other_sum) {
    const float top = fmaxf(largest, other_largest);
    if (top == -INFINITY) return;
    sum = sum * expf(largest - top) + other_sum * expf(other_largest - top);
    largest = top;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    softmax_terms_kernel(const T* logits, const int32_t* targets, float* terms, int64_t vocab, int64_t first) {
  __shared__ float largest[kThreads / 32], sums[kThreads / 32];
  const int64_t r = blockIdx.x;
  const T* row = logits + r * vocab;
  Terms mine;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) mine.merge(to_float(row[v]), 1.0f);
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) {
    const float top = __shfl_xor_sync(0xffffffffu, mine.largest, step),
                sum = __shfl_xor_sync(0xffffffffu, mine.sum, step);
    mine.merge(top, sum);
  }
  if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = mine.largest, sums[threadIdx.x / 32] = mine.sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  Terms all;
  for (int w = 0; w < kThreads / 32; ++w) all.merge(largest[w], sums[w]);
  const int64_t target = targets[r] - first;
  terms[3 * r] = all.largest;
  terms[3 * r + 1] = all.sum;
  terms[3 * r + 2] = target >= 0 && target < vocab ? to_float(row[target]) : 0.0f;
}

__global__ void softmax_loss_kernel(const float* terms, const int32_t* targets, const float* weights, float* lse,
                                    float* losses, int64_t rows, int64_t parts) {
  const int64_t r = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (r >= rows) return;
  Terms all;
  float target = 0;
  for (int64_t p = 0; p < parts; ++p) {
    const float* own = terms + 3 * (p * rows + r);
    if (own[1] > 0) all.merge(own[0], own[1]);
    target += own[2];
  }
  const float log_sum = all.largest + logf(all.sum);
  lse[r] = log_sum;
  losses[r] = targets[r] < 0 ? 0.0f : (weights ? weights[r] : 1.0f) * (log_sum - target);
}

template <class T>
__global__ void softmax_gradient_kernel(T* logits, const int32_t* targets, const float* lse, const float* scale,
                                        const float* weights, int64_t vocab, int64_t first) {
  const int64_t r = blockIdx.x;
  T* row = logits + r * vocab;
  const int32_t target = targets[r];
  const float factor = weights ? scale[0] * weights[r] : scale[0], log_sum = lse[r];
  for (int64_t v = threadIdx.x; v < vocab; v += blockDim.x) {
    const float p = target < 0 ? 0.0f : expf(to_float(row[v]) - log_sum) - (v == target - first ? 1.0f : 0.0f);
    row[v] = from_float<T>(p * factor);
  }
}

template <class T>
__global__ void dropout_rows_kernel(const T* x, T* y, const int32_t* rows, int64_t count, int64_t channels, float p,
                                    float factor, RandomKey key) {
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t r = i / channels;
    const uint64_t index =
        static_cast<uint64_t>(rows[r]) * static_cast<uint64_t>(channels) + static_cast<uint64_t>(i - r * channels);
    y[i] = from_float<T>(random_uniform(key, index) >= p ? to_float(x[i]) * factor : 0.0f);
  }
}

}  // namespace

void vocab_embedding_forward(Stream& stream, const VocabEmbeddingForwardArgs& args) {
  const int64_t tokens = args.tokens.num_elements();
  if (tokens == 0) return;
  dispatch_format(args.y.dtype(), "vocab_embedding_forward", [&]<class T>(TypeTag<T>) {
    vocab_embedding_kernel<T><<<static_cast<unsigned>(tokens), kThreads, 0, native(stream)>>>(
        args.tokens.data<int32_t>(), args.table.data<T>(), args.y.data<T>(), args.y.size(-1), args.table.size(0),
        args.first);
  });
  SINTER_CUDA_LAUNCHED();
}

void vocab_embedding_backward(Stream& stream, const VocabEmbeddingBackwardArgs& args) {
  const int64_t count = args.tokens.num_elements();
  if (count == 0) return;
  void* room = scratch(stream, Scratch::tokens, static_cast<size_t>(count) * sizeof(int32_t));
  const Tensor local = Tensor::view_of(room, {count}, base::DType::i32, args.tokens.device());
  local_tokens_kernel<<<static_cast<unsigned>(div_up(count, kThreads)), kThreads, 0, native(stream)>>>(
      args.tokens.data<int32_t>(), count, args.first, args.dtable.size(0), local.data<int32_t>());
  SINTER_CUDA_LAUNCHED();
  embedding_backward(stream, {.tokens = local, .dy = args.dy, .dtable = args.dtable});
}

void softmax_terms(Stream& stream, const SoftmaxTermsArgs& args) {
  const int64_t rows = args.logits.rows();
  if (rows == 0) return;
  dispatch_format(args.logits.dtype(), "softmax_terms", [&]<class T>(TypeTag<T>) {
    softmax_terms_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
        args.logits.data<T>(), args.targets.data<int32_t>(), args.terms.data<float>(), args.logits.size(-1),
        args.first);
  });
  SINTER_CUDA_LAUNCHED();
}

void softmax_loss(Stream& stream, const SoftmaxLossArgs& args) {
  const int64_t rows = args.lse.num_elements();
  if (rows == 0) return;
  softmax_loss_kernel<<<static_cast<unsigned>(div_up(rows, kThreads)), kThreads, 0, native(stream)>>>(
      args.terms.data<float>(), args.targets.data<int32_t>(), args.weights.data<float>(), args.lse.data<float>(),
      args.losses.data<float>(), rows, args.terms.size(0));
  SINTER_CUDA_LAUNCHED();
}

void softmax_gradient(Stream& stream, const SoftmaxGradientArgs& args) {
  const int64_t rows = args.logits.rows();
  if (rows == 0) return;
  dispatch_format(args.logits.dtype(), "softmax_gradient", [&]<class T>(TypeTag<T>) {
    softmax_gradient_kernel<T><<<static_cast<unsigned>(rows), kThreads, 0, native(stream)>>>(
        args.logits.data<T>(), args.targets.data<int32_t>(), args.lse.data<float>(), args.scale.data<float>(),
        args.weights.data<float>(), args.logits.size(-1), args.first);
  });
  SINTER_CUDA_LAUNCHED();
}

void dropout_rows(Stream& stream, const RowDropoutArgs& args) {
  const int64_t count = args.y.num_elements();
  if (count == 0) return;
  const float factor = static_cast<float>(1.0 / (1.0 - static_cast<double>(args.p)));
  dispatch_format(args.y.dtype(), "dropout_rows", [&]<class T>(TypeTag<T>) {
    dropout_rows_kernel<T><<<grid_for(stream, count, kThreads), kThreads, 0, native(stream)>>>(
        args.x.data<T>(), args.y.data<T>(), args.rows.data<int32_t>(), count, args.x.size(-1), args.p, factor,
        args.key);
  });
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
