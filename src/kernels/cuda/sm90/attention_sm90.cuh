// What our attention kernels for Hopper share: tiles of 64 columns in shared memory, the warpgroup products over them,
// barriers and the copy engine. For heads of 64 in bf16: a row of a head is 128 bytes, one line of the 128-byte swizzle
// that the copy engine writes and the products read.
//
// Only files named *_sm90.cu include this: they are compiled for sm_90a alone.
#pragma once
#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <cute/arch/copy_sm90.hpp>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90_gmma.hpp>
#include <utility>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda::sm90 {

inline constexpr int kHeadDim = 64, kHeadBytes = 2 * kHeadDim;
inline constexpr int kBlock = 128;  // queries, or keys, of a tile
inline constexpr int kTileBytes = kBlock * kHeadBytes;
inline constexpr int kGroupThreads = 128;  // a warpgroup
inline constexpr float kLog2E = 1.4426950408889634f;

// ------------------------------------------------------------------------------------------------ products

// A tile's descriptor for the tensor cores, at an address of shared memory in units of 16 bytes: rows of 128 bytes,
// swizzled, 8 rows (1024 bytes) apart from the next 8. So both for tiles read along their rows (the summed axis is
// contiguous) and for those read across them (the other axis is).
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t address) {
  constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32, kSwizzle128 = uint64_t{1} << 62,
                     kUnused = uint64_t{1} << 16;
  return kSwizzle128 | kEightRows | kUnused | (address & 0x3ffff) >> 4;
}
inline constexpr uint64_t kNextAlongRow = 32 >> 4;           // 16 columns on
inline constexpr uint64_t kNextRows = 16 * kHeadBytes >> 4;  // 16 rows on

using Along = std::integral_constant<cute::SM90::GMMA::Major, cute::SM90::GMMA::Major::K>;
using Across = std::integral_constant<cute::SM90::GMMA::Major, cute::SM90::GMMA::Major::MN>;
using cute::SM90::GMMA::ScaleOut;

// d (64, N) += or = a b over 16 of the summed axis, a and b in shared memory, each read along or across its rows.
template <class A, class B, size_t... i>
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b, ScaleOut scale,
                                         std::index_sequence<i...>) {
  cute::SM90::GMMA::MMA_64x128x16_F32BF16BF16_SS<A::value, B::value>::fma(a, b, d[i]..., scale);
}
template <class A, class B, size_t... i>
__device__ __forceinline__ void multiply(float (&d)[32], uint64_t a, uint64_t b, ScaleOut scale,
                                         std::index_sequence<i...>) {
  cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_SS<A::value, B::value>::fma(a, b, d[i]..., scale);
}
template <class A, class B, int N>
__device__ __forceinline__ void multiply(float (&d)[N], uint64_t a, uint64_t b, bool adds) {
  multiply<A, B>(d, a, b, adds ? ScaleOut::One : ScaleOut::Zero, std::make_index_sequence<N>());
}
// The same with a in registers: four words a thread.
template <size_t... i>
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t* a, uint64_t b, ScaleOut scale,
                                         std::index_sequence<i...>) {
  cute::SM90::GMMA::MMA_64x64x16_F32BF16BF16_RS<Along::value, Across::value>::fma(a[0], a[1], a[2], a[3], b, d[i]...,
                                                                                  scale);
}
__device__ __forceinline__ void multiply(float (&d)[32], const uint32_t* a, uint64_t b, bool adds) {
  multiply(d, a, b, adds ? ScaleOut::One : ScaleOut::Zero, std::make_index_sequence<32>());
}

// The compiler must not move what is done with these registers across a product's start or its wait.
template <class T, int N>
__device__ __forceinline__ void pin(T (&registers)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) cute::warpgroup_fence_operand(registers[i]);
}

// ------------------------------------------------------------------------------------------------ registers
// Results lie in registers as the tensor cores leave them: of a (64, N) tile, word 4 j + {0, 1} of a thread are columns
// 8 j + 2 (lane % 4) + {0, 1} of row 16 warp + lane / 4, words 4 j + {2, 3} the same of the row 8 below. Rounded in
// pairs they are the first factor of a product over these columns, 4 words for 16 of them.

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four 8 x 8 pieces of registers to rows of 16 bytes of shared memory, of which a lane names one; transposed or not.
__device__ __forceinline__ void store_pieces(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.x4.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
__device__ __forceinline__ void store_pieces_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                        uint32_t d) {
  asm volatile("stmatrix.sync.aligned.x4.trans.m8n8.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// By address in shared memory: through a pointer the compiler would take them for accesses to any memory.
__device__ __forceinline__ float2 load_pair(uint32_t address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address));
  return x;
}
__device__ __forceinline__ uint4 load_chunk(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(address)
               : "memory");
  return x;
}

// Where 16 bytes number `chunk` of a tile's row lie.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return static_cast<uint32_t>(row * kHeadBytes + ((chunk ^ (row & 7)) << 4));
}

// ------------------------------------------------------------------------------------------------ barriers, copies

using Barrier = cutlass::arch::ClusterTransactionBarrier;

// Which of a ring of tiles comes next, and the parity of its barriers.
template <int kStages>
struct Ring {
  int stage = 0, phase = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, phase ^= 1;
  }
};

__device__ __forceinline__ uint32_t address_of(const void* shared) { return cute::cast_smem_ptr_to_uint(shared); }
// Which group of warps this is, as a number that the compiler knows to be the same in all lanes.
__device__ __forceinline__ int warp_group() {
  return __shfl_sync(0xffffffff, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
}

__device__ __forceinline__ void load_tile(const CUtensorMap& map, uint32_t to, Barrier& full, int head, int row,
                                          int sequence) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(cute::cast_smem_ptr_to_uint(&full)), "r"(0), "r"(head), "r"(row), "r"(sequence)
      : "memory");
}
// Of one number for each query. (By a descriptor too: racecheck takes a plain bulk copy for writes of the thread that
// starts it, in no order with the reads of those that wait for its barrier.)
__device__ __forceinline__ void load_numbers(const CUtensorMap& map, uint32_t to, Barrier& full, int first) {
  asm volatile(
      "cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];" ::"r"(to),
      "l"(&map), "r"(cute::cast_smem_ptr_to_uint(&full)), "r"(first)
      : "memory");
}
// Adds to four f32 numbers in global memory, in no order with others.
__device__ __forceinline__ void add_to_global(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
}
// Before what a thread wrote to shared memory is read by the tensor cores or the copy engine.
__device__ __forceinline__ void publish_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// One arrival of every warp.
__device__ __forceinline__ void arrive_warp(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

// ------------------------------------------------------------------------------------------------ host

// Heads of 64 in rows of `width` elements, `sequences` of `length` rows: boxes of so many rows of one head. Rows beyond
// a sequence's last are read as 0.
CUtensorMap head_tiles(const void* first, int64_t heads, int64_t width, int64_t length, int64_t sequences,
                       int box_rows = kBlock);
// f32 numbers, 128 at a time.
CUtensorMap number_tiles(const float* first, int64_t count);

}  // namespace sinter::kernels::cuda::sm90
