// fill, axpby (also casts), keys and values into the paged cache.
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void fill_kernel(T* y, int64_t count, T value) {
  for (int64_t i = blockIdx.x * int64_t{kThreads} + threadIdx.x; i < count; i += int64_t{gridDim.x} * kThreads)
    y[i] = value;
}

// N elements a turn: 8 when both pointers allow it, else 1.
template <class X, class Y, int N>
__global__ void axpby_kernel(const X* x, Y* y, int64_t count, float alpha, float beta) {
  int64_t stride = int64_t{gridDim.x} * kThreads * N;
  for (int64_t i = (blockIdx.x * int64_t{kThreads} + threadIdx.x) * N; i < count; i += stride) {
    if (N == 1 || i + N <= count) {
      float a[N], b[N];
      load_floats<X, N>(x + i, a);
      if (beta != 0) {  // beta 0 overwrites, so that y may hold anything, NaN too
        load_floats<Y, N>(y + i, b);
#pragma unroll
        for (int j = 0; j < N; ++j) a[j] = alpha * a[j] + beta * b[j];
      } else {
#pragma unroll
        for (int j = 0; j < N; ++j) a[j] *= alpha;
      }
      store_floats<Y, N>(y + i, a);
    } else {
      for (int64_t j = i; j < count; ++j) {
        y[j] = from_float<Y>(alpha * to_float(x[j]) + (beta == 0 ? 0.0f : beta * to_float(y[j])));
      }
    }
  }
}

// Rows of keys and values are copied as 2-, 4-, 8- or 16-byte words.
template <class Word>
__global__ void kv_write_kernel(const Word* qkv, const int32_t* slots, Word* keys, Word* values, int64_t tokens,
                                int64_t row_words, int64_t q_words, int64_t kv_words) {
  for (int64_t t = blockIdx.x; t < tokens; t += gridDim.x) {
    int64_t slot = slots[t];
    if (slot < 0) continue;
    const Word* source = qkv + t * row_words + q_words;
    for (int64_t i = threadIdx.x; i < kv_words; i += blockDim.x) {
      keys[slot * kv_words + i] = source[i];
      values[slot * kv_words + i] = source[kv_words + i];
    }
  }
}

template <class Word>
void launch_kv_write(Stream& stream, const KvWriteArgs& args) {
  int64_t element = static_cast<int64_t>(base::dtype_bytes(args.qkv.dtype())), word = sizeof(Word);
  int64_t kv = args.num_kv_heads * args.head_dim * element / word, q = args.num_heads * args.head_dim * element / word;
  int64_t tokens = args.qkv.size(0);
  kv_write_kernel<Word><<<grid_for(stream, tokens, 1), 128, 0, native(stream)>>>(
      args.qkv.data<Word>(), args.slots.data<int32_t>(), args.keys.data<Word>(), args.values.data<Word>(), tokens,
      q + 2 * kv, q, kv);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace

void fill(Stream& stream, const FillArgs& args) {
  const Tensor& y = args.y;
  const float value = args.value;
  int64_t count = y.num_elements();
  if (count == 0) return;
  unsigned grid = grid_for(stream, count, kThreads * 8);
  if (value == 0) {  // all formats write zero as zero bits
    SINTER_CUDA_CHECK(cudaMemsetAsync(y.raw(), 0, y.bytes(), native(stream)));
    return;
  }
  if (y.dtype() == base::DType::i32) {
    fill_kernel<<<grid, kThreads, 0, native(stream)>>>(y.data<int32_t>(), count, static_cast<int32_t>(value));
  } else if (y.dtype() == base::DType::f32) {
    fill_kernel<<<grid, kThreads, 0, native(stream)>>>(y.data<float>(), count, value);
  } else if (y.dtype() == base::DType::bf16) {
    fill_kernel<<<grid, kThreads, 0, native(stream)>>>(y.data<bfloat16>(), count, __float2bfloat16_rn(value));
  } else {
    SINTER_CHECK(y.dtype() == base::DType::f16, "[fill] format {} on CUDA; expected f32, bf16, f16 or i32",
                 base::dtype_name(y.dtype()));
    fill_kernel<<<grid, kThreads, 0, native(stream)>>>(y.data<half>(), count, __float2half_rn(value));
  }
  SINTER_CUDA_LAUNCHED();
}

void axpby(Stream& stream, const AxpbyArgs& args) {
  int64_t count = args.y.num_elements();
  if (count == 0) return;
  SINTER_CHECK(args.x.num_elements() == count, "[axpby] x has {} elements, y {}", args.x.num_elements(), count);
  dispatch_format(args.x.dtype(), "axpby", [&]<class X>(TypeTag<X>) {
    dispatch_format(args.y.dtype(), "axpby", [&]<class Y>(TypeTag<Y>) {
      const X* x = args.x.data<X>();
      Y* y = args.y.data<Y>();
      if (is_aligned(x) && is_aligned(y)) {
        unsigned grid = grid_for(stream, count, kThreads * 8);
        axpby_kernel<X, Y, 8><<<grid, kThreads, 0, native(stream)>>>(x, y, count, args.alpha, args.beta);
      } else {
        unsigned grid = grid_for(stream, count, kThreads);
        axpby_kernel<X, Y, 1><<<grid, kThreads, 0, native(stream)>>>(x, y, count, args.alpha, args.beta);
      }
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void kv_write(Stream& stream, const KvWriteArgs& args) {
  if (args.qkv.size(0) == 0) return;
  size_t element = base::dtype_bytes(args.qkv.dtype());
  size_t head_bytes = static_cast<size_t>(args.head_dim) * element;
  bool aligned = is_aligned(args.qkv.raw()) && is_aligned(args.keys.raw()) && is_aligned(args.values.raw());
  if (aligned && head_bytes % 16 == 0) {
    launch_kv_write<uint4>(stream, args);
  } else if (head_bytes % 4 == 0 && aligned) {
    launch_kv_write<uint32_t>(stream, args);
  } else {
    launch_kv_write<uint16_t>(stream, args);
  }
}

}  // namespace sinter::kernels::cuda
