// Tile products of attention with AVX512-BF16: each instruction adds two products to a sum.
#include <immintrin.h>

#include "kernels/cpu/attention/attention.h"

namespace sinter::kernels::cpu {
namespace {

using Multiply = void(int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c,
                      int64_t c_stride, bool accumulate);

// kRows x kVectors sums in registers; each is one chain over the units.
template <int kRows, int kVectors>
void multiply_block(int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b, int64_t b_stride, float* c,
                    int64_t c_stride, bool accumulate) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[r][v] = accumulate ? _mm512_loadu_ps(c + r * c_stride + v * 16) : _mm512_setzero_ps();
    }
  }
  for (int64_t k = 0; k < units; ++k) {
    __m512i bs[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bs[v] = _mm512_loadu_si512(b + k * b_stride + v * 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      __m512bh x = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a[r * a_stride + k])));
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v)
        sums[r][v] = _mm512_dpbf16_ps(sums[r][v], x, reinterpret_cast<__m512bh>(bs[v]));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_storeu_ps(c + r * c_stride + v * 16, sums[r][v]);
  }
}

template <int kVectors>
void multiply_columns(int64_t rows, int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b,
                      int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  static constexpr Multiply* kBlocks[] = {multiply_block<1, kVectors>, multiply_block<2, kVectors>,
                                          multiply_block<3, kVectors>, multiply_block<4, kVectors>,
                                          multiply_block<5, kVectors>, multiply_block<6, kVectors>};
  for (int64_t r = 0; r < rows; r += 6) {
    int64_t count = rows - r < 6 ? rows - r : 6;
    kBlocks[count - 1](units, a + r * a_stride, a_stride, b, b_stride, c + r * c_stride, c_stride, accumulate);
  }
}

void multiply(int64_t rows, int64_t columns, int64_t units, const uint32_t* a, int64_t a_stride, const uint32_t* b,
              int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  int64_t n = 0;
  for (; n + 64 <= columns; n += 64) {
    multiply_columns<4>(rows, units, a, a_stride, b + n, b_stride, c + n, c_stride, accumulate);
  }
  for (; n + 32 <= columns; n += 32) {
    multiply_columns<2>(rows, units, a, a_stride, b + n, b_stride, c + n, c_stride, accumulate);
  }
  for (; n < columns; n += 16) {
    multiply_columns<1>(rows, units, a, a_stride, b + n, b_stride, c + n, c_stride, accumulate);
  }
}

void do_nothing() {}

}  // namespace

const PairKernel* avx512_bf16_pairs() {
  static constexpr PairKernel kKernel{"avx512_bf16", multiply, do_nothing, do_nothing};
  return &kKernel;
}

}  // namespace sinter::kernels::cpu
