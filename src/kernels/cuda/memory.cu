// fill, axpby (also casts), keys and values into the paged cache.
#include <cuda_fp8.h>

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

// Where a cache's layer puts a slot's head; strides in the units that are written.
struct CachePlaces {
  int64_t block_stride, head_stride, token_stride;
  int block_size;
  __device__ int64_t offset(int slot, int head) const {
    return slot / block_size * block_stride + slot % block_size * token_stride + head * head_stride;
  }
};
CachePlaces places_of(const core::KvLayer& cache, int64_t per_word) {
  return {cache.block_stride / per_word, cache.head_stride / per_word, cache.token_stride / per_word,
          static_cast<int>(cache.block_size)};
}

// Rows of keys and values are copied as 2-, 4- or 16-byte words; a token a block.
template <class Word>
__global__ void kv_write_kernel(const Word* qkv, const int32_t* slots, Word* keys, Word* values, CachePlaces places,
                                int64_t row_words, int64_t q_words, int kv_heads, int head_words) {
  if (may_overlap(gridDim.x)) let_next_begin();
  wait_for_previous();
  const int slot = slots[blockIdx.x];
  if (slot < 0) return;
  const Word* source = qkv + blockIdx.x * row_words + q_words;
  const int kv_words = kv_heads * head_words;
  for (int i = threadIdx.x; i < kv_words; i += blockDim.x) {
    const int64_t to = places.offset(slot, i / head_words) + i % head_words;
    keys[to] = source[i];
    values[to] = source[kv_words + i];
  }
}

template <class Word>
void launch_kv_write(Stream& stream, const KvWriteArgs& args) {
  const int64_t element = static_cast<int64_t>(base::dtype_bytes(args.qkv.dtype())), per_word = sizeof(Word) / element;
  const int64_t head = args.head_dim / per_word, kv = args.num_kv_heads * head, q = args.num_heads * head;
  launch_overlapping(stream, may_overlap(args.qkv.size(0)), kv_write_kernel<Word>,
                     dim3(static_cast<unsigned>(args.qkv.size(0))), 128, 0, args.qkv.data<Word>(),
                     args.slots.data<int32_t>(), args.cache.keys.data<Word>(), args.cache.values.data<Word>(),
                     places_of(args.cache, per_word), q + 2 * kv, q, static_cast<int>(args.num_kv_heads),
                     static_cast<int>(head));
}

template <class T>
__global__ void kv_write_fp8_kernel(const T* qkv, const int32_t* slots, __nv_fp8_e4m3* keys, __nv_fp8_e4m3* values,
                                    const float* key_scales, const float* value_scales, CachePlaces places,
                                    int64_t width, int64_t first, int kv_heads, int dim) {
  const int slot = slots[blockIdx.x];
  if (slot < 0) return;
  const T* source = qkv + blockIdx.x * width + first;
  for (int i = threadIdx.x; i < kv_heads * dim; i += blockDim.x) {
    const int head = i / dim;
    const int64_t to = places.offset(slot, head) + i % dim;
    keys[to] = __nv_fp8_e4m3(to_float(source[i]) / key_scales[head]);
    values[to] = __nv_fp8_e4m3(to_float(source[kv_heads * dim + i]) / value_scales[head]);
  }
}

void write_fp8(Stream& stream, const KvWriteArgs& args) {
  const core::KvLayer& cache = args.cache;
  dispatch_format(args.qkv.dtype(), "kv_write", [&]<class T>(TypeTag<T>) {
    kv_write_fp8_kernel<T><<<static_cast<unsigned>(args.qkv.size(0)), 128, 0, native(stream)>>>(
        args.qkv.data<T>(), args.slots.data<int32_t>(), cache.keys.data<__nv_fp8_e4m3>(),
        cache.values.data<__nv_fp8_e4m3>(), cache.key_scales.data<float>(), cache.value_scales.data<float>(),
        places_of(cache, 1), args.qkv.size(-1), args.num_heads * args.head_dim, static_cast<int>(args.num_kv_heads),
        static_cast<int>(args.head_dim));
  });
  SINTER_CUDA_LAUNCHED();
}

// A warp a row, codes and then the row's scale (core/kv_format.h). One that is not finite leaves a scale that shows it.
template <class T>
__global__ void kv_write_int8_kernel(const T* qkv, const int32_t* slots, int8_t* keys, int8_t* values,
                                     CachePlaces places, int64_t width, int64_t first, int kv_heads, int dim) {
  const int slot = slots[blockIdx.x], lane = static_cast<int>(threadIdx.x % 32);
  if (slot < 0) return;
  for (int row = static_cast<int>(threadIdx.x / 32); row < 2 * kv_heads; row += static_cast<int>(blockDim.x / 32)) {
    const T* source = qkv + blockIdx.x * width + first + int64_t{row} * dim;
    float largest = 0;
    bool is_finite = true;
    for (int d = lane; d < dim; d += 32) {
      const float x = fabsf(to_float(source[d]));
      largest = fmaxf(largest, x);
      is_finite = is_finite && x <= 3.402823466e38f;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    if (!__all_sync(0xffffffffu, is_finite)) largest = NAN;
    const half stored = __float2half_rn(largest / 127.0f);
    const float scale = __half2float(stored);
    int8_t* to = (row < kv_heads ? keys : values) + places.offset(slot, row % kv_heads);
    for (int d = lane; d < dim; d += 32) {
      const float code = scale > 0 ? fminf(fmaxf(rintf(to_float(source[d]) / scale), -127.0f), 127.0f) : 0.0f;
      to[d] = static_cast<int8_t>(code);
    }
    if (lane < 2) to[dim + lane] = static_cast<int8_t>(__half_as_ushort(stored) >> 8 * lane & 255);
  }
}

void write_int8(Stream& stream, const KvWriteArgs& args) {
  const core::KvLayer& cache = args.cache;
  dispatch_format(args.qkv.dtype(), "kv_write", [&]<class T>(TypeTag<T>) {
    kv_write_int8_kernel<T><<<static_cast<unsigned>(args.qkv.size(0)), 128, 0, native(stream)>>>(
        args.qkv.data<T>(), args.slots.data<int32_t>(), cache.keys.data<int8_t>(), cache.values.data<int8_t>(),
        places_of(cache, 1), args.qkv.size(-1), args.num_heads * args.head_dim, static_cast<int>(args.num_kv_heads),
        static_cast<int>(args.head_dim));
  });
  SINTER_CUDA_LAUNCHED();
}

// Over the bus a few blocks are enough, and leave the rest of the GPU to what runs beside them.
unsigned blocks_for(Stream& stream, const AxpbyArgs& args, int64_t elements_per_block) {
  constexpr unsigned kOverTheBus = 32;
  const unsigned grid = grid_for(stream, args.y.num_elements(), elements_per_block);
  const bool is_near = args.x.device() == stream.device && args.y.device() == stream.device;
  return is_near ? grid : std::min(grid, kOverTheBus);
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
        unsigned grid = blocks_for(stream, args, kThreads * 8);
        axpby_kernel<X, Y, 8><<<grid, kThreads, 0, native(stream)>>>(x, y, count, args.alpha, args.beta);
      } else {
        unsigned grid = blocks_for(stream, args, kThreads);
        axpby_kernel<X, Y, 1><<<grid, kThreads, 0, native(stream)>>>(x, y, count, args.alpha, args.beta);
      }
    });
  });
  SINTER_CUDA_LAUNCHED();
}

void kv_write(Stream& stream, const KvWriteArgs& args) {
  if (args.qkv.size(0) == 0) return;
  const core::KvLayer& cache = args.cache;
  if (cache.keys.dtype() == base::DType::f8e4m3) return write_fp8(stream, args);
  if (cache.keys.dtype() == base::DType::i8) return write_int8(stream, args);
  SINTER_CHECK(cache.keys.dtype() == args.qkv.dtype(), "[kv_write] a cache in {} for keys in {}: not on CUDA",
               base::dtype_name(cache.keys.dtype()), base::dtype_name(args.qkv.dtype()));
  const auto element = static_cast<int64_t>(base::dtype_bytes(args.qkv.dtype()));
  const int64_t strides = (args.head_dim | cache.block_stride | cache.head_stride | cache.token_stride) * element;
  const bool aligned = is_aligned(args.qkv.raw()) && is_aligned(cache.keys.raw()) && is_aligned(cache.values.raw());
  if (aligned && strides % 16 == 0) {
    launch_kv_write<uint4>(stream, args);
  } else if (aligned && strides % 4 == 0) {
    launch_kv_write<uint32_t>(stream, args);
  } else {
    launch_kv_write<uint16_t>(stream, args);
  }
}

}  // namespace sinter::kernels::cuda
