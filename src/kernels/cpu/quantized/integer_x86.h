// What AVX2 and AVX-512 VNNI share of the operations of integer_unpack-inl.h. Internal linkage for the reason given in
// matmul_tile.h.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace sinter::kernels::cpu {
namespace {

struct X86Lanes {
  using Bytes = __m256i;
  using Ints = __m256i;
  using Lanes = __m256;
  static Bytes load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Bytes load_nibbles(const uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15));
  }
  template <int kShift, int kMask>
  static Bytes shift_and(Bytes x) {
    return _mm256_and_si256(kShift == 0 ? x : _mm256_srli_epi16(x, kShift), _mm256_set1_epi8(kMask));
  }
  template <int kShift>
  static Bytes raise(Bytes x) {
    return _mm256_slli_epi16(x, kShift);
  }
  static Bytes join(Bytes x, Bytes y) { return _mm256_or_si256(x, y); }
  static Bytes flip(Bytes x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
  static Bytes bits(uint32_t x) {
    const __m256i which = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i mask = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
    const __m256i spread = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(x)), which);
    return _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, mask), mask), _mm256_set1_epi8(16));
  }
  static Bytes lookup(const uint8_t* table, Bytes codes) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(x), codes);
  }

  static Ints set_ints(int x) { return _mm256_set1_epi32(x); }
  static Ints load_ints(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
  static Ints add(Ints x, Ints y) { return _mm256_add_epi32(x, y); }
  static Ints subtract(Ints x, Ints y) { return _mm256_sub_epi32(x, y); }
  static Ints times(Ints x, Ints y) { return _mm256_mullo_epi32(x, y); }
  template <int kShift>
  static Ints shift_left(Ints x) {
    return _mm256_slli_epi32(x, kShift);
  }
  static void split(const uint64_t* bytes, Ints& even, Ints& odd) {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
    even = _mm256_cvtepi16_epi32(_mm_srai_epi16(_mm_slli_epi16(pairs, 8), 8));
    odd = _mm256_cvtepi16_epi32(_mm_srai_epi16(pairs, 8));
  }
  static void fold(const Ints* x, Ints& low, Ints& high) {
    const __m256i first = _mm256_hadd_epi32(_mm256_hadd_epi32(x[0], x[1]), _mm256_hadd_epi32(x[2], x[3]));
    const __m256i last = _mm256_hadd_epi32(_mm256_hadd_epi32(x[4], x[5]), _mm256_hadd_epi32(x[6], x[7]));
    low = _mm256_permute2x128_si256(first, last, 0x20);
    high = _mm256_permute2x128_si256(first, last, 0x31);
  }

  static Lanes zero() { return _mm256_setzero_ps(); }
  static Lanes set(float x) { return _mm256_set1_ps(x); }
  static Lanes load_lanes(const float* p) { return _mm256_loadu_ps(p); }
  static Lanes multiply(Lanes x, Lanes y) { return _mm256_mul_ps(x, y); }
  static Lanes to_lanes(Ints x) { return _mm256_cvtepi32_ps(x); }
  static Lanes of_bytes(uint64_t x) {
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(x))));
  }
  static int16_t half_bits(const uint8_t* p) {
    int16_t bits;
    std::memcpy(&bits, p, sizeof bits);
    return bits;
  }
  static float half(const uint8_t* p) { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(half_bits(p)))); }
  static Lanes strided_halves(const uint8_t* p, int64_t n) {
    return _mm256_cvtph_ps(_mm_setr_epi16(half_bits(p), half_bits(p + n), half_bits(p + 2 * n), half_bits(p + 3 * n),
                                          half_bits(p + 4 * n), half_bits(p + 5 * n), half_bits(p + 6 * n),
                                          half_bits(p + 7 * n)));
  }
  static Lanes add_product(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
  static Lanes subtract_product(Lanes a, Lanes b, Lanes c) { return _mm256_fnmadd_ps(a, b, c); }
  static float sum(Lanes x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
};

}  // namespace
}  // namespace sinter::kernels::cpu
