// Packing panels and writing results with AVX-512, shared by the three kernels that need it. Included by files compiled
// with AVX-512 flags only; internal linkage for the reason given in matmul_tile.h.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/matmul/matmul_pack.h"
#include "kernels/cpu/matmul/transpose_avx512.h"

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
  static void transpose(__m512i (&x)[16]) { transpose_16x16(x); }
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

// Formats of c: elements as floats and back, rounding to nearest even.
struct ToF32 {
  using Element = float;
  static __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
  static void store(float* p, __mmask16 mask, __m512 value) { _mm512_mask_storeu_ps(p, mask, value); }
};
struct ToF16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, __mmask16 mask) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p)); }
  static void store(uint16_t* p, __mmask16 mask, __m512 value) {
    _mm256_mask_storeu_epi16(p, mask, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
};
struct ToBf16 {
  using Element = uint16_t;
  static __m512 load(const uint16_t* p, __mmask16 mask) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
  }
  static void store(uint16_t* p, __mmask16 mask, __m512 value) {
    __m512i u = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i nan = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
    _mm256_mask_storeu_epi16(p, mask, _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, is_nan, nan)));
  }
};

template <class To>
void finish_as(const TileOutput& out) {
  auto* c = static_cast<typename To::Element*>(out.c);
  auto* bias = static_cast<const typename To::Element*>(out.bias);
  const __m512 alpha = _mm512_set1_ps(out.alpha);
  auto* addends = static_cast<const typename To::Element*>(out.added);
  const bool has_bias = bias != nullptr, has_addends = addends != nullptr;
  for (int64_t j = 0; j < out.columns; j += 16) {
    __mmask16 mask = first_lanes(out.columns - j);
    __m512 added = has_bias ? To::load(bias + j, mask) : _mm512_setzero_ps();
    const float* tile = out.tile + j;
    typename To::Element* to = c + j;
    const typename To::Element* from = has_addends ? addends + j : c;
    for (int64_t r = 0; r < out.rows; ++r, tile += out.tile_stride, to += out.c_stride, from += out.c_stride) {
      __m512 value = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(mask, tile));
      if (has_bias) value = _mm512_add_ps(value, added);
      if (has_addends) value = _mm512_add_ps(value, To::load(from, mask));
      To::store(to, mask, value);
    }
  }
}

// Whole lines past the caches: reading c first, which an ordinary store does, would double the traffic.
inline void stream_tile(const TileOutput out) {
  for (int64_t r = 0; r < out.rows; ++r) {
    float* to = static_cast<float*>(out.c) + r * out.c_stride;
    for (int64_t j = 0; j < out.columns; j += 16) {
      _mm512_stream_ps(to + j, _mm512_load_ps(out.tile + r * out.tile_stride + j));
    }
  }
}
inline void fence_streams() { _mm_sfence(); }

// Four chains, as long as an addition takes.
inline float sum_squares_of_block(const float* x, int64_t stride, int64_t rows, int64_t columns) {
  __m512 sums[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int64_t j = 0; j < columns; j += 16) {
    const __mmask16 mask = first_lanes(columns - j);
    for (int64_t r = 0; r < rows; r += 4) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        __m512 value = r + i < rows ? _mm512_maskz_loadu_ps(mask, x + (r + i) * stride + j) : _mm512_setzero_ps();
        sums[i] = _mm512_fmadd_ps(value, value, sums[i]);
      }
    }
  }
  alignas(64) float lanes[16];
  _mm512_store_ps(lanes, _mm512_add_ps(_mm512_add_ps(sums[0], sums[1]), _mm512_add_ps(sums[2], sums[3])));
  __m128 sum = _mm_add_ps(_mm_add_ps(_mm_load_ps(lanes), _mm_load_ps(lanes + 4)),
                          _mm_add_ps(_mm_load_ps(lanes + 8), _mm_load_ps(lanes + 12)));
  sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
  return _mm_cvtss_f32(_mm_add_ss(sum, _mm_shuffle_ps(sum, sum, 1)));
}

template <class ToBf16Rounding>
void finish_tile(const TileOutput& out) {
  if (out.streams && out.dtype == base::DType::f32) return stream_tile(out);
  switch (out.dtype) {
    case base::DType::bf16:
      return finish_as<ToBf16Rounding>(out);
    case base::DType::f16:
      return finish_as<ToF16>(out);
    default:
      return finish_as<ToF32>(out);
  }
}

}  // namespace
}  // namespace sinter::kernels::cpu
