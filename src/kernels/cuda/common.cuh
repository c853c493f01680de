// What our CUDA kernels are written with: vectors of 16 bytes, conversions, sums in a fixed order, random numbers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {

using bfloat16 = __nv_bfloat16;
using half = __half;

inline cudaStream_t native(const Stream& stream) { return static_cast<cudaStream_t>(stream.native); }
inline int64_t div_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline bool is_aligned(const void* p, size_t bytes = 16) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; }
// A grid for `count` independent items in a grid-stride loop: enough blocks to fill the GPU some times over.
inline unsigned grid_for(const Stream& stream, int64_t count, int64_t per_block, int64_t blocks_per_sm = 16) {
  int64_t most = blocks_per_sm * num_multiprocessors(stream);
  int64_t blocks = div_up(count, per_block);
  return static_cast<unsigned>(blocks < 1 ? 1 : (blocks < most ? blocks : most));
}

template <class T>
struct TypeTag {
  using type = T;
};
// Calls body(TypeTag<T>) with the device type of a compute format.
template <class Body>
void dispatch_format(base::DType dtype, const char* what, Body&& body) {
  switch (dtype) {
    case base::DType::f32:
      body(TypeTag<float>{});
      return;
    case base::DType::bf16:
      body(TypeTag<bfloat16>{});
      return;
    case base::DType::f16:
      body(TypeTag<half>{});
      return;
    default:
      base::fail("[{}] format {} on CUDA; expected f32, bf16 or f16", what, base::dtype_name(dtype));
  }
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
template <class T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ half from_float<half>(float x) {
  return __float2half_rn(x);
}

// Programmatic dependent launch (Hopper): a kernel launched by launch_dependent() may begin while the one before it on
// the stream still runs, once all of that one's blocks have called let_next_begin() or ended. Every thread calls
// wait_for_previous() before it touches what earlier kernels write or read; what nobody writes (weights, the batch's
// arrays) may be fetched before. Elsewhere the three are an ordinary launch and nothing.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void let_next_begin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
template <class... Params, class... Args>
void launch_overlapping(Stream& stream, bool overlaps, void (*kernel)(Params...), dim3 grid, unsigned threads,
                        size_t shared_bytes, Args... args) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = native(stream);
  config.attrs = &overlap;
  config.numAttrs = overlaps && options().overlap && compute_capability(stream.device) >= 90 ? 1 : 0;
  SINTER_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...));
}
template <class... Params, class... Args>
void launch_dependent(Stream& stream, void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes,
                      Args... args) {
  launch_overlapping(stream, true, kernel, grid, threads, shared_bytes, args...);
}
// For small kernels between products. Between products that begin early themselves, these doing so too made steps of 1
// and 8 rows 7 and 13 % slower on an H200 (of 32 and 128 rows, whose products are the library's, 7 and 2 % faster), so
// with few rows they do not, and call let_next_begin() only where may_overlap(rows).
__host__ __device__ __forceinline__ bool may_overlap(int64_t rows) { return rows > 16; }

// N elements moved by as few and as wide accesses as their size allows. Addresses must be aligned to sizeof(Vector).
template <class T, int N>
struct alignas(sizeof(T) * N >= 16 ? 16 : sizeof(T) * N) Vector {
  T v[N];
};
template <class T>
inline constexpr int kWidth = 16 / static_cast<int>(sizeof(T));  // elements of a 16-byte access

template <class T, int N>
__device__ __forceinline__ void load_floats(const T* p, float (&out)[N]) {
  Vector<T, N> x = *reinterpret_cast<const Vector<T, N>*>(p);
#pragma unroll
  for (int i = 0; i < N; ++i) out[i] = to_float(x.v[i]);
}
template <class T, int N>
__device__ __forceinline__ void store_floats(T* p, const float (&in)[N]) {
  Vector<T, N> x;
#pragma unroll
  for (int i = 0; i < N; ++i) x.v[i] = from_float<T>(in[i]);
  *reinterpret_cast<Vector<T, N>*>(p) = x;
}

// A 16-byte vector as it is in memory, and its elements. Kernels that use a value twice with a barrier between keep it
// packed: half the registers of 16-bit formats.
struct Packed {
  uint32_t word[4];
};
template <class T>
__device__ __forceinline__ Packed load_packed(const T* p) {
  uint4 raw = *reinterpret_cast<const uint4*>(p);
  return {{raw.x, raw.y, raw.z, raw.w}};
}
template <class T>
__device__ __forceinline__ void unpack(const Packed& x, float (&out)[kWidth<T>]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      out[i] = __uint_as_float(x.word[i]);
    } else if constexpr (std::is_same_v<T, bfloat16>) {
      out[2 * i] = __uint_as_float(x.word[i] << 16);
      out[2 * i + 1] = __uint_as_float(x.word[i] & 0xffff0000u);
    } else {
      __half2_raw pair{static_cast<unsigned short>(x.word[i]), static_cast<unsigned short>(x.word[i] >> 16)};
      float2 both = __half22float2(pair);
      out[2 * i] = both.x;
      out[2 * i + 1] = both.y;
    }
  }
}

inline constexpr float kLog2e = 1.4426950408889634f;  // exponentials are powers of two

// By approximate instructions (relative error about 2^-21).
__device__ __forceinline__ float fast_sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
  return x;
}
// The sum over a block of kThreads (a multiple of 32), in every thread. `shared` holds kThreads / 32 floats; a caller
// that reuses it puts a barrier between.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x, float* shared) {
  x = warp_sum(x);
  if constexpr (kThreads > 32) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
    __syncthreads();
    x = threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : 0.0f;
    x = warp_sum(x);
  }
  return x;
}

// Philox 4x32-10 as in base/rng.h: block `index` of (seed, stream).
__device__ __forceinline__ uint4 philox_block(uint64_t seed, uint64_t stream, uint64_t index) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    uint32_t h0 = __umulhi(0xD2511F53u, c0), l0 = 0xD2511F53u * c0;
    uint32_t h1 = __umulhi(0xCD9E8D57u, c2), l1 = 0xCD9E8D57u * c2;
    c0 = h1 ^ c1 ^ k0;
    c1 = l1;
    c2 = h0 ^ c3 ^ k1;
    c3 = l0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return make_uint4(c0, c1, c2, c3);
}
__device__ __forceinline__ uint32_t word_of(const uint4& block, uint32_t i) {
  return i == 0 ? block.x : i == 1 ? block.y : i == 2 ? block.z : block.w;
}
__device__ __forceinline__ float uniform_from_bits(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
__device__ __forceinline__ float random_uniform(const RandomKey& key, uint64_t index) {
  return uniform_from_bits(word_of(philox_block(key.seed, key.stream, index >> 2), static_cast<uint32_t>(index & 3)));
}

// y[c] = (or +=) the sum over g of partials[g][c], g ascending within 32 interleaved chains: reductions.cu.
void reduce_partials(Stream& stream, const float* partials, int64_t groups, int64_t columns, int64_t row_stride,
                     float* y, bool accumulate);
// Sorts (key - first, position) by key, keeping positions of equal keys in order: sort.cu. Keys lie in [first, first +
// key_count), others go last, as key_count. Results are valid until the next call on the stream.
struct SortedKeys {
  const int32_t* keys;
  const int32_t* positions;
};
SortedKeys sort_keys(Stream& stream, const int32_t* keys, int64_t count, int64_t key_count, int64_t first = 0);

}  // namespace sinter::kernels::cuda
