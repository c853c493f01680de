// Two rows of a weight at a time in the two halves of 512 bits: the lanes of integer_rows-inl.h, and so the same bits.
#include <immintrin.h>

#include "base/block_decode.h"
#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {
namespace {

using Bytes = __m512i;
using Lanes = __m512;

__m256i load32(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// 32 bytes of each row.
Bytes load(const uint8_t* p, int64_t stride) {
  return _mm512_inserti64x4(_mm512_castsi256_si512(load32(p)), load32(p + stride), 1);
}
// 16 bytes of each row to 32 codes, low halves first.
Bytes load_nibbles(const uint8_t* p, int64_t stride) {
  auto codes = [](const uint8_t* from) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return _mm256_set_m128i(_mm_srli_epi16(x, 4), x);
  };
  const Bytes both = _mm512_inserti64x4(_mm512_castsi256_si512(codes(p)), codes(p + stride), 1);
  return _mm512_and_si512(both, _mm512_set1_epi8(15));
}
template <int kShift, int kMask>
Bytes shift_and(Bytes x) {
  return _mm512_and_si512(kShift == 0 ? x : _mm512_srli_epi16(x, kShift), _mm512_set1_epi8(kMask));
}
Bytes raise4(Bytes x) { return _mm512_slli_epi16(x, 4); }
Bytes less(Bytes x, char n) { return _mm512_sub_epi8(x, _mm512_set1_epi8(n)); }
Lanes halves(float first, float second) { return _mm512_insertf32x8(_mm512_set1_ps(first), _mm256_set1_ps(second), 1); }
Lanes both_halves(const float* p) { return _mm512_broadcast_f32x8(_mm256_loadu_ps(p)); }

// Codes of 32 columns of both rows, ready for products.
template <bool kSigned>
struct Codes {
  Bytes magnitude;
  __mmask64 is_negative = 0;
  explicit Codes(Bytes codes) : magnitude(codes) {
    if constexpr (kSigned) {
      magnitude = _mm512_abs_epi8(codes);
      is_negative = _mm512_movepi8_mask(codes);
    }
  }
  // Sums of four products each with the codes of a row of activations.
  Lanes dot(const int8_t* activations) const {
    Bytes x = _mm512_broadcast_i64x4(load32(reinterpret_cast<const uint8_t*>(activations)));
    if constexpr (kSigned) x = _mm512_mask_sub_epi8(x, is_negative, _mm512_setzero_si512(), x);
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(_mm512_setzero_si512(), magnitude, x));
  }
};

// Some rows of activations and the sums that belong to them.
template <int64_t kCount>
struct Pass {
  const RoundedRows& rows;
  const int64_t first, blocks;
  Lanes total[kCount];
  Pass(const RoundedRows& all, int64_t first_row) : rows(all), first(first_row), blocks(all.columns / 32) {
    for (Lanes& t : total) t = _mm512_setzero_ps();
  }
  template <bool kSigned>
  void add(const Codes<kSigned>& codes, Lanes scale, int64_t block) {
    for (int64_t i = 0; i < kCount; ++i) {
      const Lanes dot = codes.dot(rows.codes + (first + i) * rows.columns + block * 32);
      const Lanes both = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[(first + i) * blocks + block]));
      total[i] = _mm512_fmadd_ps(both, dot, total[i]);
    }
  }
};

float sum(__m256 x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
void put_sums(Lanes x, float* out) {
  out[0] = sum(_mm512_castps512_ps256(x)), out[1] = sum(_mm512_extractf32x8_ps(x, 1));
}

template <int64_t kCount, bool kNibbles>
void simple(const uint8_t* weights, int64_t stride, const RoundedRows& rows, int64_t first, float* out) {
  constexpr int64_t kBytes = kNibbles ? 18 : 34;
  Pass<kCount> pass(rows, first);
  for (int64_t b = 0; b < pass.blocks; ++b, weights += kBytes) {
    const Codes<true> codes(kNibbles ? less(load_nibbles(weights + 2, stride), 8) : load(weights + 2, stride));
    pass.add(codes, halves(base::block::load_half(weights), base::block::load_half(weights + stride)), b);
  }
  for (int64_t i = 0; i < kCount; ++i) put_sums(pass.total[i], out + 2 * i);
}

// The sixteen scales of both rows, s of the first and s of the second in their halves.
template <int kIndex>
Lanes pick(Lanes scales) {
  const __m512i index = _mm512_inserti64x4(_mm512_set1_epi32(kIndex), _mm256_set1_epi32(kIndex + 8), 1);
  return _mm512_permutexvar_ps(index, scales);
}

template <int64_t kCount, bool kFive>
void k4(const uint8_t* weights, int64_t stride, const RoundedRows& rows, int64_t first, float* out) {
  Pass<kCount> pass(rows, first);
  Lanes mins[kCount];
  for (Lanes& m : mins) m = _mm512_setzero_ps();
  for (int64_t b = 0; b < pass.blocks; b += 8, weights += kFive ? 176 : 144) {
    alignas(64) float scale[16], min[16];
    for (int r = 0; r < 2; ++r) {
      const uint8_t* block = weights + r * stride;
      const float d = base::block::load_half(block), dmin = base::block::load_half(block + 2);
      for (int s = 0; s < 8; ++s) {
        const base::block::ScaleMin sm = base::block::scale_min_k4(block + 4, s);
        scale[8 * r + s] = d * static_cast<float>(sm.scale);
        min[8 * r + s] = dmin * static_cast<float>(sm.min);
      }
    }
    const Lanes scales = _mm512_load_ps(scale), minimums = _mm512_load_ps(min);
    const uint8_t* low = weights + (kFive ? 48 : 16);
    const Bytes high = kFive ? load(weights + 16, stride) : Bytes{};
    auto pair = [&]<int kPair>() {
      const Bytes both = load(low + kPair * 32, stride);
      Bytes one = shift_and<0, 15>(both), two = shift_and<4, 15>(both);
      if constexpr (kFive) {
        one = _mm512_or_si512(one, raise4(shift_and<2 * kPair, 1>(high)));
        two = _mm512_or_si512(two, raise4(shift_and<2 * kPair + 1, 1>(high)));
      }
      pass.add(Codes<false>(one), pick<2 * kPair>(scales), b + 2 * kPair);
      pass.add(Codes<false>(two), pick<2 * kPair + 1>(scales), b + 2 * kPair + 1);
    };
    pair.template operator()<0>(), pair.template operator()<1>(), pair.template operator()<2>(),
        pair.template operator()<3>();
    for (int64_t i = 0; i < kCount; ++i)
      mins[i] = _mm512_fmadd_ps(minimums, both_halves(rows.sums + (first + i) * pass.blocks + b), mins[i]);
  }
  for (int64_t i = 0; i < kCount; ++i) {
    float subtracted[2];
    put_sums(pass.total[i], out + 2 * i), put_sums(mins[i], subtracted);
    out[2 * i] -= subtracted[0], out[2 * i + 1] -= subtracted[1];
  }
}

template <int64_t kCount>
void q6_k(const uint8_t* weights, int64_t stride, const RoundedRows& rows, int64_t first, float* out) {
  Pass<kCount> pass(rows, first);
  for (int64_t b = 0; b < pass.blocks; b += 8, weights += 210) {
    auto scales_of = [](const uint8_t* block) {
      const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
      return _mm512_mul_ps(_mm512_set1_ps(base::block::load_half(block + 208)),
                           _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)));
    };
    const Lanes one = scales_of(weights), two = scales_of(weights + stride);
    auto run = [&]<int kRun>() {  // 32 columns
      constexpr int kHalf = kRun / 4, kGroup = kRun % 4, kFirst = 2 * kRun;
      const Bytes low = shift_and<4 * (kGroup / 2), 15>(load(weights + kHalf * 64 + kGroup % 2 * 32, stride));
      const Bytes high = shift_and<2 * kGroup, 3>(load(weights + 128 + kHalf * 32, stride));
      const Codes<true> codes(less(_mm512_or_si512(low, raise4(high)), 32));
      const __m512i index =
          _mm512_setr_epi32(kFirst, kFirst, kFirst, kFirst, kFirst + 1, kFirst + 1, kFirst + 1, kFirst + 1, kFirst + 16,
                            kFirst + 16, kFirst + 16, kFirst + 16, kFirst + 17, kFirst + 17, kFirst + 17, kFirst + 17);
      pass.add(codes, _mm512_permutex2var_ps(one, index, two), b + kRun);
    };
    run.template operator()<0>(), run.template operator()<1>(), run.template operator()<2>(),
        run.template operator()<3>(), run.template operator()<4>(), run.template operator()<5>(),
        run.template operator()<6>(), run.template operator()<7>();
  }
  for (int64_t i = 0; i < kCount; ++i) put_sums(pass.total[i], out + 2 * i);
}

using Fixed = void (*)(const uint8_t* weights, int64_t stride, const RoundedRows& rows, int64_t first, float* out);
// A kernel for any count, from those of one, four and eight rows.
template <Fixed kOne, Fixed kFour, Fixed kEight>
void any(const uint8_t* weights, int64_t stride, const RoundedRows& rows, int64_t first, int64_t count, float* out) {
  if (count == 8) return kEight(weights, stride, rows, first, out);
  for (; count >= 4; count -= 4, first += 4, out += 8) kFour(weights, stride, rows, first, out);
  for (; count > 0; --count, ++first, out += 2) kOne(weights, stride, rows, first, out);
}

}  // namespace

IntegerPairKernel avx512_vnni_pair_kernel(base::WeightFormat format) {
  switch (format) {
    case base::WeightFormat::q8_0:
      return any<simple<1, false>, simple<4, false>, simple<8, false>>;
    case base::WeightFormat::q4_0:
      return any<simple<1, true>, simple<4, true>, simple<8, true>>;
    case base::WeightFormat::q4_k:
      return any<k4<1, false>, k4<4, false>, k4<8, false>>;
    case base::WeightFormat::q5_k:
      return any<k4<1, true>, k4<4, true>, k4<8, true>>;
    case base::WeightFormat::q6_k:
      return any<q6_k<1>, q6_k<4>, q6_k<8>>;
    default:
      return nullptr;
  }
}

}  // namespace sinter::kernels::cpu
