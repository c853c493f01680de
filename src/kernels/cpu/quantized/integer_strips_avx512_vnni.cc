// Strips of 32 rows of a weight for AVX-512 VNNI (integer_strip.h). A product of a vector with four numbers of an
// activation, broadcast, adds to 16 sums at once.
#include <utility>

#include "kernels/cpu/matmul/transpose_avx512.h"
#include "kernels/cpu/quantized/integer_strip.h"
#include "kernels/cpu/quantized/integer_unpack-inl.h"
#include "kernels/cpu/quantized/integer_vnni.h"

namespace sinter::kernels::cpu {
namespace {

using base::WeightFormat;

constexpr int64_t kBlockColumns = 32, kLanes = 8, kHalfRows = 16, kVector = 64;

template <WeightFormat kFormat>
struct Strip : StripPlaces {
  static constexpr StripForm kStrip = strip_form(kFormat);
  uint8_t *group_halves, *records;

  Strip(const void* memory, int64_t columns) : StripPlaces(columns) {
    group_halves = static_cast<uint8_t*>(const_cast<void*>(memory));
    records = group_halves + groups * kStrip.group_halves * kPackedRows * 2;
  }
  uint8_t* at(int64_t g, int64_t lane) const { return records + record(g, lane) * kStrip.record_bytes; }
  // f16 numbers of all rows: 0 the scale, 1 the minimum.
  uint8_t* halves_of_group(int64_t g, int which) const {
    return group_halves + (g * kStrip.group_halves + which) * kPackedRows * 2;
  }
};

// The codes of a block of 16 rows, a vector for each of its eight steps, in `kBits` to `to`.
template <int kBits>
void store_codes(const __m512i* steps, uint8_t* to) {
  constexpr int64_t kNext = 2 * kVector;  // the other vectors are those of the other 16 rows
  if constexpr (kBits == 8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) _mm512_store_si512(to + j * kNext, steps[j]);
    return;
  }
  const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512i odd = _mm512_slli_epi16(_mm512_and_si512(steps[2 * i + 1], low), 4);
    _mm512_store_si512(to + i * kNext, _mm512_or_si512(_mm512_and_si512(steps[2 * i], low), odd));
  }
  if constexpr (kBits > 4) {
    constexpr int kHigh = kBits - 4, kSteps = 8 / kHigh;
    const __m512i mask = _mm512_set1_epi8((1 << kHigh) - 1);
    for (int v = 0; v < kHigh; ++v) {
      __m512i high = _mm512_setzero_si512();
      for (int j = 0; j < kSteps; ++j) {
        const __m512i bits = _mm512_and_si512(_mm512_srli_epi16(steps[v * kSteps + j], 4), mask);
        high = _mm512_or_si512(high, _mm512_sll_epi16(bits, _mm_cvtsi32_si128(j * kHigh)));
      }
      _mm512_store_si512(to + (4 + v) * kNext, high);
    }
  }
}

// (rows, 256) codes of group g to their places.
template <WeightFormat kFormat>
void arrange_codes(const uint8_t* codes, int64_t g, const Strip<kFormat>& strip) {
  for (int64_t pair = 0; pair < kLanes / 2; ++pair) {
    for (int64_t half = 0; half < 2; ++half) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i)
        x[i] = _mm512_load_si512(codes + (kHalfRows * half + i) * kGroupColumns + kVector * pair);
      transpose_16x16(x);
      for (int64_t b = 0; b < 2; ++b) {
        const int64_t lane = 2 * pair + b;
        if (8 * g + lane < strip.blocks)
          store_codes<Strip<kFormat>::kStrip.code_bits>(x + 8 * b, strip.at(g, lane) + kVector * half);
      }
    }
  }
}

template <class T>
void put(uint8_t* to, int64_t row, const T& value) {
  std::memcpy(to + row * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

// Scales and minimums of group `g` of one row, whose bytes are `from`.
template <WeightFormat kFormat>
void arrange_scales(const uint8_t* from, const IntegerGroup<Avx512Vnni>& group, int64_t g, int64_t row,
                    const Strip<kFormat>& strip) {
  constexpr IntegerForm kForm = integer_form(kFormat);
  constexpr StripForm kStrip = strip_form(kFormat);
  for (int i = 0; i < kStrip.group_halves; ++i)
    std::memcpy(strip.halves_of_group(g, i) + 2 * row, from + group_scale_at(kFormat) + 2 * i, 2);
  alignas(32) float single[8];
  alignas(32) int32_t halves[16], half_mins[16];
  uint64_t steps[2] = {};
  if constexpr (kStrip.scale == StripScale::single) _mm256_store_ps(single, group.scale);
  if constexpr (kStrip.scale == StripScale::step)
    IntegerUnpack<Avx512Vnni, kFormat>::steps_k4(from, steps[0], steps[1]);
  for (int h = 0; h < 2; ++h) {
    if constexpr (kForm.has_halves) _mm256_store_si256(reinterpret_cast<__m256i*>(halves + 8 * h), group.halves[h]);
    if constexpr (kForm.has_half_min)
      _mm256_store_si256(reinterpret_cast<__m256i*>(half_mins + 8 * h), group.half_mins[h]);
  }
  for (int64_t lane = 0; lane < kLanes && 8 * g + lane < strip.blocks; ++lane) {
    uint8_t* record = strip.at(g, lane);
    if constexpr (kStrip.scale == StripScale::single) put(record + kStrip.scale_offset, row, single[lane]);
    if constexpr (kStrip.scale == StripScale::half) {
      constexpr int64_t kBytes = group_bytes(kFormat) / 8;
      std::memcpy(record + kStrip.scale_offset + 2 * row, from + lane * kBytes, 2);
      if constexpr (kForm.has_min) std::memcpy(record + kStrip.min_offset + 2 * row, from + lane * kBytes + 2, 2);
    }
    if constexpr (kStrip.scale == StripScale::step) {
      put(record + kStrip.scale_offset, row, static_cast<uint8_t>(steps[0] >> 8 * lane));
      put(record + kStrip.min_offset, row, static_cast<uint8_t>(steps[1] >> 8 * lane));
    }
    for (int h = 0; h < 2; ++h) {
      const int64_t at = h * kPackedRows + row;
      if constexpr (kForm.has_halves) put(record + kStrip.halves_offset, at, static_cast<int8_t>(halves[8 * h + lane]));
      if constexpr (kForm.has_half_min)
        put(record + kStrip.half_mins_offset, at, static_cast<int8_t>(half_mins[8 * h + lane]));
    }
  }
}

template <WeightFormat kFormat>
void pack(const uint8_t* weights, int64_t row_bytes, int64_t rows, int64_t columns, void* memory) {
  using Isa = Avx512Vnni;
  constexpr int64_t kLinesAhead = 6;
  const Strip<kFormat> strip(memory, columns);
  constexpr int64_t kGroupBytes = group_bytes(kFormat);
  if (rows < kPackedRows) std::memset(memory, 0, static_cast<size_t>(strip_bytes(kFormat, columns)));
  alignas(64) uint8_t codes[kPackedRows * kGroupColumns];
  std::memset(codes + rows * kGroupColumns, 0, static_cast<size_t>((kPackedRows - rows) * kGroupColumns));
  for (int64_t g = 0; g < strip.groups; ++g) {
    for (int64_t r = 0; r < rows; ++r) {
      const uint8_t* row = weights + r * row_bytes;
      const IntegerGroup<Isa> group = IntegerUnpack<Isa, kFormat>::read(row, g, strip.blocks);
      for (int64_t line = 0; line * 64 < kGroupBytes; ++line)
        __builtin_prefetch(row + (g + 1) * kGroupBytes + (line + kLinesAhead) * 64);
      for (int64_t b = 0; b < kLanes; ++b)
        _mm256_store_si256(reinterpret_cast<__m256i*>(codes + r * kGroupColumns + 32 * b), group.codes[b]);
      arrange_scales<kFormat>(row + g * kGroupBytes, group, g, r, strip);
    }
    arrange_codes<kFormat>(codes, g, strip);
  }
}

// Sums of kCount activations with 32 rows: two vectors for each.
template <int64_t kCount>
using Ints = __m512i[kCount][2];
template <int64_t kCount>
using Floats = __m512[kCount][2];

__m512i broadcast4(const int8_t* p) {
  int32_t four;
  std::memcpy(&four, p, sizeof four);
  return _mm512_set1_epi32(four);
}

// Step kStep of a block, of 16 rows; `codes` is where their first vector lies.
template <int kBits, int kStep>
[[gnu::always_inline]] inline __m512i load_step(const uint8_t* codes) {
  constexpr int64_t kNext = 2 * kVector;
  if constexpr (kBits == 8) return _mm512_load_si512(codes + kStep * kNext);
  const __m512i pair = _mm512_load_si512(codes + kStep / 2 * kNext), mask = _mm512_set1_epi8(15);
  const __m512i low = _mm512_and_si512(kStep % 2 == 0 ? pair : _mm512_srli_epi16(pair, 4), mask);
  if constexpr (kBits <= 4) return low;
  constexpr int kHigh = kBits <= 4 || kBits == 8 ? 1 : kBits - 4, kSteps = 8 / kHigh, kAt = kStep % kSteps * kHigh;
  const __m512i high = _mm512_load_si512(codes + (4 + kStep / kSteps) * kNext);
  const __m512i shifted =
      kAt < 4 ? _mm512_slli_epi16(high, kAt < 4 ? 4 - kAt : 0) : _mm512_srli_epi16(high, kAt < 4 ? 0 : kAt - 4);
  constexpr int kJoin = 0xf8;  // low | (shifted & mask)
  return _mm512_ternarylogic_epi64(low, shifted, _mm512_set1_epi8(((1 << kHigh) - 1) << 4), kJoin);
}

// Steps [kFrom, kFrom + sizeof...(kSteps)) of a block.
template <int kBits, int64_t kCount, int kFrom, int... kSteps>
[[gnu::always_inline]] inline void multiply_steps(const uint8_t* weights, const int8_t* codes, int64_t stride,
                                                  Ints<kCount>& sums, std::integer_sequence<int, kSteps...>) {
#pragma GCC unroll 6
  for (int64_t i = 0; i < kCount; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
  auto step = [&]<int kStep>() __attribute__((always_inline)) {
    const __m512i one = load_step<kBits, kStep>(weights), two = load_step<kBits, kStep>(weights + kVector);
#pragma GCC unroll 6
    for (int64_t i = 0; i < kCount; ++i) {
      const __m512i x = broadcast4(codes + i * stride + 4 * kStep);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], one, x);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], two, x);
    }
  };
  (step.template operator()<kFrom + kSteps>(), ...);
}

__m512 load_halves(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <bool kIsSigned>
__m512i load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return kIsSigned ? _mm512_cvtepi8_epi32(bytes) : _mm512_cvtepu8_epi32(bytes);
}

// Scales (or, `is_min`, minimums) of a block of 16 rows from row `first` on.
template <WeightFormat kFormat, bool kIsMin>
[[gnu::always_inline]] inline __m512 load_scale(const Strip<kFormat>& strip, const uint8_t* record, int64_t g,
                                                int64_t first) {
  constexpr StripForm kStrip = strip_form(kFormat);
  const uint8_t* own = record + (kIsMin ? kStrip.min_offset : kStrip.scale_offset);
  if constexpr (kStrip.scale == StripScale::single) return _mm512_loadu_ps(own + 4 * first);
  if constexpr (kStrip.scale == StripScale::half) {
    const __m512 stored = load_halves(own + 2 * first);
    return kIsMin ? _mm512_mul_ps(_mm512_set1_ps(-1.0f), stored) : stored;
  }
  const __m512 of_group = load_halves(strip.halves_of_group(g, kIsMin) + 2 * first);
  if constexpr (kStrip.scale == StripScale::of_group) return of_group;
  return _mm512_mul_ps(of_group, _mm512_cvtepi32_ps(load_bytes<false>(own + first)));
}

// sums = factor * (sums - (sum of the activation's codes << kShift)), of half a block.
template <int64_t kCount, int kShift>
[[gnu::always_inline]] inline void weigh_half(const uint8_t* factors, const int32_t* halves, int64_t stride,
                                              Ints<kCount>& sums) {
  const __m512i factor[2] = {load_bytes<true>(factors), load_bytes<true>(factors + kHalfRows)};
#pragma GCC unroll 6
  for (int64_t i = 0; i < kCount; ++i) {
    for (int h = 0; h < 2; ++h) {
      if constexpr (kShift >= 0)
        sums[i][h] = _mm512_sub_epi32(sums[i][h], _mm512_slli_epi32(_mm512_set1_epi32(halves[i * stride]), kShift));
      sums[i][h] = _mm512_mullo_epi32(sums[i][h], factor[h]);
    }
  }
}

// Whole products of a block.
template <WeightFormat kFormat, int64_t kCount>
[[gnu::always_inline]] inline void multiply_block(const uint8_t* record, const int8_t* codes, int64_t stride,
                                                  const int32_t* halves, int64_t halves_stride, Ints<kCount>& sums) {
  constexpr IntegerForm kForm = integer_form(kFormat);
  constexpr StripForm kStrip = strip_form(kFormat);
  constexpr std::make_integer_sequence<int, 4> kFour;
  if constexpr (kForm.has_halves) {
    const uint8_t* factors = record + kStrip.halves_offset;
    Ints<kCount> more;
    multiply_steps<kStrip.code_bits, kCount, 0>(record, codes, stride, sums, kFour);
    weigh_half<kCount, kForm.shift>(factors, halves, halves_stride, sums);
    multiply_steps<kStrip.code_bits, kCount, 4>(record, codes, stride, more, kFour);
    weigh_half<kCount, kForm.shift>(factors + kPackedRows, halves + 8, halves_stride, more);
    for (int64_t i = 0; i < kCount; ++i) {
      for (int h = 0; h < 2; ++h) sums[i][h] = _mm512_add_epi32(sums[i][h], more[i][h]);
    }
  } else {
    multiply_steps<kStrip.code_bits, kCount, 0>(record, codes, stride, sums, std::make_integer_sequence<int, 8>());
    if constexpr (kForm.shift >= 0) {
#pragma GCC unroll 6
      for (int64_t i = 0; i < kCount; ++i) {
        const int32_t of_codes = (halves[i * halves_stride] + halves[i * halves_stride + 8]) * (1 << kForm.shift);
        for (int h = 0; h < 2; ++h) sums[i][h] = _mm512_sub_epi32(sums[i][h], _mm512_set1_epi32(of_codes));
      }
    }
  }
}

template <WeightFormat kFormat, int64_t kCount>
void multiply_fixed(const Strip<kFormat>& strip, const RoundedRows& rows, int64_t first, float* out) {
  constexpr IntegerForm kForm = integer_form(kFormat);
  constexpr StripForm kStrip = strip_form(kFormat);
  constexpr int64_t kBytesAhead = 2048;
  const int64_t groups = strip.groups, stride = rows.stride;
  alignas(64) float lanes[kLanes][kCount][kPackedRows];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    Floats<kCount> total;
    for (auto& t : total) t[0] = t[1] = _mm512_setzero_ps();
    const uint8_t* record = strip.at(0, lane);
    for (int64_t g = 0; 8 * g + lane < strip.blocks; ++g, record += kStrip.record_bytes) {
      // Products of few activations wait for memory else, of more for what they are computed from in between.
      for (int64_t byte = 0; byte < kStrip.record_bytes; byte += 64) __builtin_prefetch(record + kBytesAhead + byte);
      const int8_t* codes = rows.codes + first * stride + g * kGroupColumns + lane * kBlockColumns;
      const int32_t* halves = rows.halves + (first * groups + g) * 16 + lane;
      Ints<kCount> sums;
      multiply_block<kFormat, kCount>(record, codes, stride, halves, groups * 16, sums);
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m512 scale = load_scale<kFormat, false>(strip, record, g, kHalfRows * h);
#pragma GCC unroll 6
        for (int64_t i = 0; i < kCount; ++i) {
          const int64_t at = ((first + i) * groups + g) * 8 + lane;
          const __m512 of_row = _mm512_set1_ps(rows.scales[at]);
          total[i][h] = _mm512_fmadd_ps(_mm512_mul_ps(scale, of_row), _mm512_cvtepi32_ps(sums[i][h]), total[i][h]);
          if constexpr (kForm.has_min) {
            const __m512 min = load_scale<kFormat, true>(strip, record, g, kHalfRows * h);
            total[i][h] = _mm512_fnmadd_ps(min, _mm512_set1_ps(rows.sums[at]), total[i][h]);
          }
          if constexpr (kForm.has_half_min) {
            const uint8_t* factors = record + kStrip.half_mins_offset + kHalfRows * h;
            const __m512 min = load_scale<kFormat, true>(strip, record, g, kHalfRows * h);
            const __m512i one = _mm512_set1_epi32(halves[i * groups * 16]),
                          two = _mm512_set1_epi32(halves[i * groups * 16 + 8]);
            const __m512i mins = _mm512_add_epi32(_mm512_mullo_epi32(one, load_bytes<true>(factors)),
                                                  _mm512_mullo_epi32(two, load_bytes<true>(factors + kPackedRows)));
            total[i][h] = _mm512_fnmadd_ps(_mm512_mul_ps(min, of_row), _mm512_cvtepi32_ps(mins), total[i][h]);
          }
        }
      }
    }
    for (int64_t i = 0; i < kCount; ++i) {
      for (int h = 0; h < 2; ++h) _mm512_store_ps(&lanes[lane][i][kHalfRows * h], total[i][h]);
    }
  }
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t r = 0; r < kPackedRows; r += kHalfRows) {
      auto four = [&](int64_t lane) {
        return _mm512_add_ps(_mm512_load_ps(&lanes[lane][i][r]), _mm512_load_ps(&lanes[lane + 4][i][r]));
      };
      _mm512_storeu_ps(out + i * kPackedRows + r,
                       _mm512_add_ps(_mm512_add_ps(four(0), four(2)), _mm512_add_ps(four(1), four(3))));
    }
  }
}

template <WeightFormat kFormat>
void multiply(const void* memory, const RoundedRows& rows, int64_t first, int64_t count, float* out) {
  const Strip<kFormat> strip(memory, rows.columns);
  switch (count) {
    case 1:
      return multiply_fixed<kFormat, 1>(strip, rows, first, out);
    case 2:
      return multiply_fixed<kFormat, 2>(strip, rows, first, out);
    case 3:
      return multiply_fixed<kFormat, 3>(strip, rows, first, out);
    case 4:
      return multiply_fixed<kFormat, 4>(strip, rows, first, out);
    case 5:
      return multiply_fixed<kFormat, 5>(strip, rows, first, out);
    default:
      return multiply_fixed<kFormat, 6>(strip, rows, first, out);
  }
}

}  // namespace

IntegerStripKernel avx512_vnni_strip_kernel(WeightFormat format) {
  IntegerStripKernel kernel;
  visit_integer_format(format, [&]<WeightFormat kFormat>() { kernel = {pack<kFormat>, multiply<kFormat>}; });
  return kernel;
}

}  // namespace sinter::kernels::cpu
