// Packing panels and writing results with AVX-512, shared by the three kernels that need it. Included by files compiled
// with AVX-512 flags only; internal linkage for the reason given in matmul_tile.h.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/matmul_pack.h"

namespace sinter::kernels::cpu {
namespace {

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

struct Block512 {
  using Vector = __m512i;
  static constexpr int kLanes = 16;
  static Vector zero() { return _mm512_setzero_si512(); }
  static void store(uint32_t* p, Vector x) { _mm512_storeu_si512(p, x); }
  static void store_low(uint32_t* p, Vector x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_castsi512_si256(x));
  }
  static void store_high(uint32_t* p, Vector x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_extracti64x4_epi64(x, 1));
  }
  // 16 x 16 units: in pairs of vectors, then of pairs, then of quarters.
  static void transpose(__m512i (&x)[16]) {
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
};

struct FloatsFromF32 {
  using Block = Block512;
  static constexpr int kPerUnit = 1, kBytes = 4;
  static __m512i along_k(const void* p, int64_t count) { return _mm512_maskz_loadu_epi32(first_lanes(count), p); }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FloatsFromBf16 {
  using Block = Block512;
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m512i along_k(const void* p, int64_t count) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), p)), 16);
  }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FloatsFromF16 {
  using Block = Block512;
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m512i along_k(const void* p, int64_t count) {
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p)));
  }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct PairsFromBf16 {
  using Block = Block512;
  static constexpr int kPerUnit = 2, kBytes = 2;
  static __m512i along_k(const void* p, int64_t count) {
    __mmask32 mask = static_cast<__mmask32>(count >= 32 ? 0xffffffffu : (1u << count) - 1);
    return _mm512_maskz_loadu_epi16(mask, p);
  }
  static __m512i across(const void* p, const void* next, int64_t lines) {
    __m512i even = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(lines), p));
    if (!next) return even;
    __m512i odd = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(lines), next));
    return _mm512_or_si512(even, _mm512_slli_epi32(odd, 16));
  }
};

template <int kWidth>
void pack_float_units(const PackSource& source, const PackRange& range, uint32_t* panels) {
  pack_floats<kWidth, FloatsFromF32, FloatsFromBf16, FloatsFromF16>(source, range, panels);
}

// Elements of c or bias as floats and back, rounding to nearest even as base::bf16 does.
inline __m512 load_elements(const void* p, base::DType dtype, int64_t at, __mmask16 mask) {
  if (dtype == base::DType::f32) return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(p) + at);
  __m256i bits = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(p) + at);
  if (dtype == base::DType::f16) return _mm512_cvtph_ps(bits);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline __m256i round_to_bf16(__m512 value) {
  __m512i u = _mm512_castps_si512(value);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, nan));
}

inline void store_elements(void* p, base::DType dtype, int64_t at, __mmask16 mask, __m512 value) {
  if (dtype == base::DType::f32) return _mm512_mask_storeu_ps(static_cast<float*>(p) + at, mask, value);
  __m256i bits = dtype == base::DType::f16 ? _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                           : round_to_bf16(value);
  _mm256_mask_storeu_epi16(static_cast<uint16_t*>(p) + at, mask, bits);
}

inline void finish_tile(const TileOutput& out) {
  __m512 alpha = _mm512_set1_ps(out.alpha);
  for (int64_t r = 0; r < out.rows; ++r) {
    const float* tile = out.tile + r * out.tile_stride;
    for (int64_t j = 0; j < out.columns; j += 16) {
      __mmask16 mask = first_lanes(out.columns - j);
      int64_t at = r * out.c_stride + j;
      __m512 value = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(mask, tile + j));
      if (out.bias) value = _mm512_add_ps(value, load_elements(out.bias, out.dtype, j, mask));
      if (out.accumulate) value = _mm512_add_ps(value, load_elements(out.c, out.dtype, at, mask));
      store_elements(out.c, out.dtype, at, mask, value);
    }
  }
}

}  // namespace
}  // namespace sinter::kernels::cpu
