// What AVX2 and AVX-512 VNNI share of the operations of integer_rows-inl.h.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace sinter::kernels::cpu {

struct X86Lanes {
  using Bytes = __m256i;
  using Lanes = __m256;
  static Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Bytes load_nibbles(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), mask = _mm_set1_epi8(15);
    return _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16(x, 4), mask), _mm_and_si128(x, mask));
  }
  template <int kShift, int kMask>
  static Bytes shift_and(Bytes x) {
    return _mm256_and_si256(kShift == 0 ? x : _mm256_srli_epi16(x, kShift), _mm256_set1_epi8(kMask));
  }
  static Bytes raise4(Bytes x) { return _mm256_slli_epi16(x, 4); }
  static Bytes join(Bytes x, Bytes y) { return _mm256_or_si256(x, y); }
  static Bytes less(Bytes x, int n) { return _mm256_sub_epi8(x, _mm256_set1_epi8(static_cast<char>(n))); }
  static Lanes zero() { return _mm256_setzero_ps(); }
  static Lanes set(float x) { return _mm256_set1_ps(x); }
  static Lanes halves(float x, float y) { return _mm256_set_m128(_mm_set1_ps(y), _mm_set1_ps(x)); }
  static Lanes load_lanes(const float* p) { return _mm256_loadu_ps(p); }
  static Lanes add_product(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
  static float sum(Lanes x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace sinter::kernels::cpu
