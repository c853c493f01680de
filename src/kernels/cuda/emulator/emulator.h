// CUDA's kernels on the CPU: the threads of a block are fibers that take turns, so that a kernel's arithmetic can be
// tested where there is no GPU. translate.py turns a .cu file into C++ that includes this first.
//
// A barrier of a warp or block, and every exchange within a warp, hands over to the next thread; one that not all
// threads reach ends the program. Blocks run one after the other. Asynchronous copies are done at once, so waits that
// are missing go unnoticed, as do races and limits of registers.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>

#undef __global__
#undef __device__
#undef __host__
#undef __launch_bounds__
#undef __align__
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __align__(bytes)
#define __CUDA_ARCH__ 900

// What a thread sees of itself.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

namespace emulator {

inline constexpr int kMostThreads = 1024, kWarp = 32;
inline constexpr size_t kSharedBytes = 227 * 1024;
alignas(128) inline unsigned char dynamic_shared[kSharedBytes];

enum class Wait { none, warp, block };
// Runs `kernel` for every block of the grid. `shared_bytes`: of dynamic shared memory, filled with rubbish first.
void launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& kernel);
// The calling thread goes on once all of its warp or block that still run have come as far.
void wait(Wait what);
int thread();  // number in its block
bool any_of_block(bool holds);

// What the lanes of a warp hand each other: every lane writes its slot, waits, reads the others', waits.
struct Slot {
  alignas(16) unsigned char bytes[48];
};
Slot& slot_of(int thread);

template <class T>
T exchange(T value, int lane) {
  static_assert(sizeof(T) <= sizeof(Slot::bytes));
  const int first = thread() / kWarp * kWarp;
  std::memcpy(slot_of(thread()).bytes, &value, sizeof value);
  wait(Wait::warp);
  T other;
  std::memcpy(&other, slot_of(first + lane).bytes, sizeof other);
  wait(Wait::warp);
  return other;
}
template <class T, class Join>
T reduce(T value, Join&& join) {
  for (int step = kWarp / 2; step > 0; step /= 2) value = join(value, exchange(value, thread() % kWarp ^ step));
  return value;
}

// d += a b as mma.m16n8k16 with f32 sums; T is the format of a and b.
template <class T>
void multiply_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  const int lane = thread() % kWarp, first = thread() - lane;
  const Operands own{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  std::memcpy(slot_of(thread()).bytes, &own, sizeof own);
  wait(Wait::warp);
  auto half_of = [](uint32_t word, int i) {
    return static_cast<float>(std::bit_cast<T>(static_cast<uint16_t>(i == 0 ? word & 0xffff : word >> 16)));
  };
  auto of_lane = [&](int other) {
    Operands operands;
    std::memcpy(&operands, slot_of(first + other).bytes, sizeof operands);
    return operands;
  };
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    double sum = 0;
    for (int k = 0; k < 16; ++k) {
      const Operands left = of_lane(row % 8 * 4 + k % 8 / 2), right = of_lane(column * 4 + k % 8 / 2);
      sum += static_cast<double>(half_of(left.a[row / 8 + k / 8 * 2], k % 2)) * half_of(right.b[k / 8], k % 2);
    }
    d[i] += static_cast<float>(sum);
  }
  wait(Wait::warp);
}

// The instructions of translate.py, with their operands.
template <class T>
void multiply(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
              uint32_t b0, uint32_t b1) {
  float d[4] = {d0, d1, d2, d3};
  multiply_16x8x16<T>(d, {a0, a1, a2, a3}, b0, b1);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
// Addresses of shared memory have 32 bits: of what is static here, and so within reach of any static object.
uint32_t shared_address(const void* p);
void* shared_pointer(uint32_t address);
// Four 8x8 matrices of 16-bit numbers; lane i of each eight has the address of row i.
void load_matrices(uint32_t& r0, uint32_t& r1, uint32_t& r2, uint32_t& r3, uint32_t row, bool transposed);
// Of addresses at multiples of 16; `bytes` of the 16 are read, the rest are zeros.
void copy_16(void* to, const void* from, int bytes);
void load_16(uint32_t& x, uint32_t& y, uint32_t& z, uint32_t& w, const void* from);
// A launch by cudaLaunchKernelEx.
inline cudaError_t launch_as(const cudaLaunchConfig_t& config, const std::function<void()>& kernel) {
  launch(config.gridDim, config.blockDim, config.dynamicSmemBytes, kernel);
  return cudaSuccess;
}

}  // namespace emulator

inline void __syncthreads() { emulator::wait(emulator::Wait::block); }
inline void __syncwarp() { emulator::wait(emulator::Wait::warp); }
inline void __threadfence() {}
inline size_t __cvta_generic_to_shared(const void* p) { return emulator::shared_address(p); }
#define cudaFuncSetAttribute(...) cudaSuccess
#define cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, ...) (*(blocks) = 2, cudaSuccess)
#define cudaMemsetAsync(to, value, bytes, stream) (std::memset(to, value, bytes), cudaSuccess)
#define cudaMemcpyAsync(to, from, bytes, kind, stream) (std::memmove(to, from, bytes), cudaSuccess)
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulator::exchange(value, lane % emulator::kWarp);
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulator::exchange(value, emulator::thread() % emulator::kWarp ^ mask);
}
template <class T>
T __shfl_up_sync(unsigned, T value, unsigned step) {
  const int lane = emulator::thread() % emulator::kWarp, from = lane - static_cast<int>(step);
  return emulator::exchange(value, from < 0 ? lane : from);
}
template <class T>
T __shfl_down_sync(unsigned, T value, unsigned step) {
  const int lane = emulator::thread() % emulator::kWarp, from = lane + static_cast<int>(step);
  return emulator::exchange(value, from >= emulator::kWarp ? lane : from);
}
inline unsigned __ballot_sync(unsigned, int holds) {
  const unsigned bit = (holds ? 1u : 0u) << emulator::thread() % emulator::kWarp;
  return emulator::reduce(bit, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) != 0; }
inline int __all_sync(unsigned mask, int holds) { return __ballot_sync(mask, holds) == 0xffffffffu; }
inline int __syncthreads_or(int holds) { return emulator::any_of_block(holds != 0); }
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return emulator::reduce(value, [](unsigned a, unsigned b) { return std::max(a, b); });
}

inline unsigned atomicInc(unsigned* at, unsigned most) {
  const unsigned old = *at;
  *at = old >= most ? 0 : old + 1;
  return old;
}
template <class T>
T atomicAdd(T* at, T value) {
  const T old = *at;
  *at = old + value;
  return old;
}
template <class T>
T atomicMax(T* at, T value) {
  const T old = *at;
  *at = std::max(old, value);
  return old;
}

inline uint32_t __umulhi(uint32_t a, uint32_t b) { return static_cast<uint32_t>(uint64_t{a} * b >> 32); }
inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t shift) {
  return static_cast<uint32_t>((uint64_t{high} << 32 | low) >> (shift & 31));
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t s = selector >> 4 * i & 15, byte = static_cast<uint32_t>(bytes >> 8 * (s & 7)) & 255;
    out |= (s & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
  }
  return out;
}
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __fdividef(float a, float b) { return a / b; }
#define __expf(x) std::exp(x)
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __saturatef(float x) { return std::clamp(x, 0.0f, 1.0f); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
T __ldg(const T* p) {
  return *p;
}
using std::isfinite;
using std::isinf;
using std::isnan;
template <class A, class B>
constexpr auto min(A a, B b) {
  return a < b ? a : b;
}
template <class A, class B>
constexpr auto max(A a, B b) {
  return a < b ? b : a;
}
