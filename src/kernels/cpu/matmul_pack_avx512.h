// Packing panels and writing results with AVX-512, shared by the three kernels that need it. Included by files compiled
// with AVX-512 flags only; internal linkage for the reason given in matmul_tile.h.
//
// Both work on blocks of 16 lines by 16 units, held in 16 vectors. What the source gives and what the panel wants are
// each one of two views of such a block: a vector per line (its lanes run along K), or a vector per unit of K (its
// lanes are lines). When they differ the block is transposed in registers.
#pragma once
#include <immintrin.h>

#include "kernels/cpu/matmul_kernel.h"

namespace sinter::kernels::cpu {
namespace {

inline __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffff : (1u << n) - 1); }

// Readers of a source format. along_k: up to 16 units of one line, from `count` elements. across: one unit of K for
// `lines` lines; `next` is the element of the following k, null when there is none.
struct FloatsFromF32 {
  static constexpr int kPerUnit = 1, kBytes = 4;
  static __m512i along_k(const void* p, int64_t count) { return _mm512_maskz_loadu_epi32(first_lanes(count), p); }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FloatsFromBf16 {
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m512i along_k(const void* p, int64_t count) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(count), p)), 16);
  }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FloatsFromF16 {
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m512i along_k(const void* p, int64_t count) {
    return _mm512_castps_si512(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(count), p)));
  }
  static __m512i across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct PairsFromBf16 {
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

// 16 x 16 units: in pairs of vectors, then of pairs, then of quarters.
inline void transpose_block(__m512i (&x)[16]) {
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

// Vectors of a block, by line when kByLine, else by unit. Lines and elements that are not there read as zero.
template <class Reader, bool kContiguous, bool kByLine>
inline void read_block(const PackSource& source, int64_t line, int64_t num_lines, int64_t k, int64_t num_k,
                       __m512i (&x)[16]) {
  const char* data = static_cast<const char*>(source.data);
  int64_t step = source.stride * Reader::kBytes;
  if constexpr (kContiguous) {
    const char* p = data + line * step + k * Reader::kBytes;
    if (num_lines >= 16 && num_k >= 16 * Reader::kPerUnit) {
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = Reader::along_k(p + i * step, 16 * Reader::kPerUnit);
    } else {
      for (int i = 0; i < 16; ++i) x[i] = i < num_lines ? Reader::along_k(p + i * step, num_k) : _mm512_setzero_si512();
    }
  } else {
    const char* p = data + k * step + line * Reader::kBytes;
    for (int i = 0; i < 16; ++i, p += Reader::kPerUnit * step) {
      int64_t left = num_k - i * Reader::kPerUnit;
      x[i] = left <= 0 ? _mm512_setzero_si512() : Reader::across(p, left > 1 ? p + step : nullptr, num_lines);
    }
  }
  if constexpr (kContiguous != kByLine) transpose_block(x);
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Panels of kWidth lines, [unit][line]. kWidth 8 fills two panels from one block.
template <int kWidth, class Reader, bool kContiguous>
void pack_units(const PackSource& source, const PackRange& range, uint32_t* panels) {
  constexpr int kPerUnit = Reader::kPerUnit;
  int64_t units = (range.num_k + kPerUnit - 1) / kPerUnit;
  constexpr int kStep = kWidth < 16 ? 16 : kWidth;
  for (int64_t line = 0; line < range.num_lines; line += kStep) {
    uint32_t* panel = panels + line / kWidth * range.panel_stride;
    for (int64_t u = 0; u < units; u += 16) {
      for (int w = 0; w < kStep; w += 16) {
        int64_t lines = range.num_lines - line - w;
        __m512i x[16];
        read_block<Reader, kContiguous, false>(source, range.first_line + line + w, lines < 0 ? 0 : lines,
                                               range.first_k + u * kPerUnit, range.num_k - u * kPerUnit, x);
        int count = static_cast<int>(smaller(16, units - u));
        if constexpr (kWidth < 16) {
          uint32_t* low = panel + u * kWidth;
          uint32_t* high = low + range.panel_stride;
          for (int i = 0; i < count; ++i)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + i * 8), _mm512_castsi512_si256(x[i]));
          if (lines > 8) {
            for (int i = 0; i < count; ++i) {
              _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + i * 8), _mm512_extracti64x4_epi64(x[i], 1));
            }
          }
        } else if (count == 16) {
#pragma GCC unroll 16
          for (int i = 0; i < 16; ++i) _mm512_storeu_si512(panel + (u + i) * kWidth + w, x[i]);
        } else {
          for (int i = 0; i < count; ++i) _mm512_storeu_si512(panel + (u + i) * kWidth + w, x[i]);
        }
      }
    }
  }
}

template <int kWidth>
void pack_float_units(const PackSource& source, const PackRange& range, uint32_t* panels) {
  bool contiguous = source.k_is_contiguous;
  switch (source.dtype) {
    case base::DType::bf16:
      return contiguous ? pack_units<kWidth, FloatsFromBf16, true>(source, range, panels)
                        : pack_units<kWidth, FloatsFromBf16, false>(source, range, panels);
    case base::DType::f16:
      return contiguous ? pack_units<kWidth, FloatsFromF16, true>(source, range, panels)
                        : pack_units<kWidth, FloatsFromF16, false>(source, range, panels);
    default:
      return contiguous ? pack_units<kWidth, FloatsFromF32, true>(source, range, panels)
                        : pack_units<kWidth, FloatsFromF32, false>(source, range, panels);
  }
}

template <int kWidth>
void pack_pair_units(const PackSource& source, const PackRange& range, uint32_t* panels) {
  return source.k_is_contiguous ? pack_units<kWidth, PairsFromBf16, true>(source, range, panels)
                                : pack_units<kWidth, PairsFromBf16, false>(source, range, panels);
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
