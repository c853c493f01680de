// Tensor-core pieces for 16-bit formats: m16n8k16 products, ldmatrix from shared memory, asynchronous copies.
//
// Tiles lie in shared memory row-major with kPad elements after each row: 16 bytes, so that the eight rows of an 8x8
// matrix start in different banks.
#pragma once
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {

constexpr int kPad = 8;

// d += a b: a (16, 16) row-major, b (16, 8) column-major, d (16, 8) f32. Thread `lane` holds d[lane / 4][lane % 4 * 2 +
// {0, 1}] and the same eight rows below.
template <class T>
__device__ __forceinline__ void mma_16x8x16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

// The a operand at (row, k) of a tile stored [row][k].
template <class T>
__device__ __forceinline__ void load_a(uint32_t (&r)[4], const T* tile, int stride, int row, int k, int lane) {
  ldmatrix_x4(r, shared_address(tile + (row + lane % 16) * stride + k + lane / 16 * 8));
}
// The a operand at (row, k) of a tile stored [k][row].
template <class T>
__device__ __forceinline__ void load_a_transposed(uint32_t (&r)[4], const T* tile, int stride, int row, int k,
                                                  int lane) {
  ldmatrix_x4_transposed(r, shared_address(tile + (k + lane % 8 + lane / 16 * 8) * stride + row + lane / 8 % 2 * 8));
}
// Two b operands, columns n..n+7 (r[0], r[1]) and n+8..n+15 (r[2], r[3]), of a tile stored [n][k].
template <class T>
__device__ __forceinline__ void load_b(uint32_t (&r)[4], const T* tile, int stride, int n, int k, int lane) {
  ldmatrix_x4(r, shared_address(tile + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8));
}
// The same of a tile stored [k][n].
template <class T>
__device__ __forceinline__ void load_b_transposed(uint32_t (&r)[4], const T* tile, int stride, int n, int k, int lane) {
  ldmatrix_x4_transposed(r, shared_address(tile + (k + lane % 16) * stride + n + lane / 16 * 8));
}

template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&x);
  } else {
    __half2 x = __floats2half2_rn(low, high);
    return *reinterpret_cast<uint32_t*>(&x);
  }
}

// 16 bytes from device to shared memory, or zeros.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid) {
  int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes));
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;"); }
template <int kPending>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending));
}

// Tiles of rows [first of s .. ) of ragged groups: block b belongs to the group s with the largest start(s) <= b, where
// start(s) = floor(offsets[s] * scale / tile) + s. Groups never share a block number and
// floor(total * scale / tile) + groups blocks are enough.
__device__ __forceinline__ int64_t tile_start(const int32_t* offsets, int64_t s, int64_t scale, int64_t tile) {
  return int64_t{offsets[s]} * scale / tile + s;
}
__device__ __forceinline__ int find_group(const int32_t* offsets, int groups, int64_t scale, int64_t tile,
                                          int64_t block) {
  int low = 0, high = groups - 1;
  while (low < high) {
    int middle = (low + high + 1) / 2;
    if (tile_start(offsets, middle, scale, tile) <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

}  // namespace sinter::kernels::cuda
