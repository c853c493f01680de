// f32 panels with AVX2 and FMA: 4 rows by 3 vectors, 12 sums in 16 registers.
#include <immintrin.h>

#include <cstring>

#include "kernels/cpu/matmul/matmul_pack.h"
#include "kernels/cpu/matmul/matmul_tile.h"

namespace sinter::kernels::cpu {
namespace {

struct Floats {
  using Vector = __m256;
  using Sum = __m256;
  static constexpr int kLanes = 8, kVectors = 3, kRows = 4, kElementsPerUnit = 1;
  static Vector load(const uint32_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
  static Vector broadcast(const uint32_t* p) { return _mm256_broadcast_ss(reinterpret_cast<const float*>(p)); }
  static Sum zero() { return _mm256_setzero_ps(); }
  static Sum load_sum(const float* p) { return _mm256_loadu_ps(p); }
  static void store_sum(float* p, Sum sum) { _mm256_storeu_ps(p, sum); }
  static Sum multiply_add(Vector a, Vector b, Sum sum) { return _mm256_fmadd_ps(a, b, sum); }
  static void keep(Sum& sum) { asm volatile("" : "+x"(sum)); }
};

struct Block256 {
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static void store(uint32_t* p, Vector x) { _mm256_storeu_ps(reinterpret_cast<float*>(p), x); }
  static void store_low(uint32_t* p, Vector x) {
    _mm_storeu_ps(reinterpret_cast<float*>(p), _mm256_castps256_ps128(x));
  }
  static void store_high(uint32_t* p, Vector x) {
    _mm_storeu_ps(reinterpret_cast<float*>(p), _mm256_extractf128_ps(x, 1));
  }
  // 8 x 8 units: in pairs of vectors, then of pairs, then of halves.
  static void transpose(__m256 (&x)[8]) {
    __m256 t[8];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      x[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      x[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      x[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      x[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      t[i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x20);
      t[4 + i] = _mm256_permute2f128_ps(x[i], x[4 + i], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) x[i] = t[i];
  }
};

__m256 widen_bf16(__m128i bits) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16)); }

// Up to 8 elements of 2 bytes, zero past the last.
__m128i load_narrow(const void* p, int64_t count) {
  if (count >= 8) return _mm_loadu_si128(static_cast<const __m128i*>(p));
  alignas(16) uint16_t part[8] = {};
  std::memcpy(part, p, static_cast<size_t>(count) * 2);
  return _mm_load_si128(reinterpret_cast<const __m128i*>(part));
}

struct FromF32 {
  using Block = Block256;
  static constexpr int kPerUnit = 1, kBytes = 4;
  static __m256 along_k(const void* p, int64_t count) {
    if (count >= 8) return _mm256_loadu_ps(static_cast<const float*>(p));
    alignas(32) float part[8] = {};
    std::memcpy(part, p, static_cast<size_t>(count) * 4);
    return _mm256_load_ps(part);
  }
  static __m256 across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FromBf16 {
  using Block = Block256;
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m256 along_k(const void* p, int64_t count) { return widen_bf16(load_narrow(p, count)); }
  static __m256 across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};
struct FromF16 {
  using Block = Block256;
  static constexpr int kPerUnit = 1, kBytes = 2;
  static __m256 along_k(const void* p, int64_t count) { return _mm256_cvtph_ps(load_narrow(p, count)); }
  static __m256 across(const void* p, const void*, int64_t lines) { return along_k(p, lines); }
};

struct PanelOfBf16 {
  using Element = uint16_t;
  static __m256 load(const uint16_t* p) { return FromBf16::along_k(p, 8); }
};
struct PanelOfF16 {
  using Element = uint16_t;
  static __m256 load(const uint16_t* p) { return FromF16::along_k(p, 8); }
};

__m256 load_elements(const void* p, base::DType dtype, int64_t at) {
  switch (dtype) {
    case base::DType::bf16:
      return FromBf16::along_k(static_cast<const uint16_t*>(p) + at, 8);
    case base::DType::f16:
      return FromF16::along_k(static_cast<const uint16_t*>(p) + at, 8);
    default:
      return _mm256_loadu_ps(static_cast<const float*>(p) + at);
  }
}

// Rounds to nearest even, as base::bf16 does.
__m128i round_to_bf16(__m256 value) {
  __m256i u = _mm256_castps_si256(value);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40));
  __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  __m256i bits = _mm256_blendv_epi8(rounded, nan, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
}

void store_elements(void* p, base::DType dtype, int64_t at, __m256 value) {
  if (dtype == base::DType::f32) return _mm256_storeu_ps(static_cast<float*>(p) + at, value);
  __m128i bits = dtype == base::DType::f16 ? _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                                           : round_to_bf16(value);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(static_cast<uint16_t*>(p) + at), bits);
}

void finish_tile(const TileOutput& out) {
  __m256 alpha = _mm256_set1_ps(out.alpha);
  for (int64_t r = 0; r < out.rows; ++r) {
    int64_t j = 0;
    for (; j + 8 <= out.columns; j += 8) {
      int64_t at = r * out.c_stride + j;
      __m256 value = _mm256_mul_ps(alpha, _mm256_loadu_ps(out.tile + r * out.tile_stride + j));
      if (out.bias) value = _mm256_add_ps(value, load_elements(out.bias, out.dtype, j));
      if (out.added) value = _mm256_add_ps(value, load_elements(out.added, out.dtype, at));
      store_elements(out.c, out.dtype, at, value);
    }
    finish_row_plainly(out, r, j);
  }
}

}  // namespace

const MatmulKernel* avx2_f32_kernel() {
  static constexpr MatmulKernel kKernel{
      .name = "avx2",
      .rows = Floats::kRows,
      .columns = Floats::kVectors * Floats::kLanes,
      .step_k = 1,
      .step_units = 1,
      .slice_units = 0,
      .rows_in_place = 0,
      .pack_a = pack_floats<Floats::kRows, FromF32, FromBf16, FromF16>,
      .pack_b = pack_floats<Floats::kVectors * Floats::kLanes, FromF32, FromBf16, FromF16>,
      .multiply = multiply_tile<Floats>,
      .multiply_narrow = multiply_narrow_tile<Floats, PanelOfBf16, PanelOfF16>,
      .narrow_rows = 4 * Floats::kRows,
      .finish = finish_tile,
      .transpose = nullptr,
      .sum_squares = sum_squares_plainly,
      .can_stream = false,
      .enter = do_nothing,
      .leave = do_nothing,
      .spin = spin_registers<Floats>,
  };
  return &kKernel;
}

}  // namespace sinter::kernels::cpu
