// 16 x 16 units of 4 bytes transposed in registers. Usable in files compiled with AVX-512 flags and in Highway's
// AVX-512 targets alike; internal linkage for the reason given in matmul_tile.h.
#pragma once
#include <immintrin.h>

namespace sinter::kernels::cpu {
namespace {

// In pairs of vectors, then of pairs, then of quarters.
[[gnu::target("avx512f"), gnu::always_inline]] inline void transpose_16x16(__m512i (&x)[16]) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    x[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    x[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    x[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(x[i], x[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(x[8 + i], x[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    x[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    x[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    x[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

}  // namespace
}  // namespace sinter::kernels::cpu
