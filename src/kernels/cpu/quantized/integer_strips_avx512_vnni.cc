// Strips of 32 rows of a weight for AVX-512 VNNI. A vector of a strip holds four columns of 16 rows, so a product with
// four numbers of an activation, broadcast, adds to 16 sums at once.
#include <array>

#include "kernels/cpu/matmul/transpose_avx512.h"
#include "kernels/cpu/quantized/integer_product.h"
#include "kernels/cpu/quantized/integer_unpack-inl.h"
#include "kernels/cpu/quantized/integer_vnni.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int64_t kBlockColumns = 32, kLanes = 8;

// Where the parts of a strip lie. Blocks are in the order of their lanes: 0, 8, 16, ..., then 1, 9, ...
struct Strip {
  int64_t blocks, groups;
  uint8_t* codes;               // (places, 8, kPackedRows, 4)
  float *scales, *mins;         // (places, kPackedRows)
  int32_t *halves, *half_mins;  // (places, 2, kPackedRows)

  Strip(const void* memory, int64_t columns) : blocks(columns / kBlockColumns), groups((blocks + kLanes - 1) / kLanes) {
    const int64_t places = groups * kLanes;
    codes = static_cast<uint8_t*>(const_cast<void*>(memory));
    scales = reinterpret_cast<float*>(codes + places * kBlockColumns * kPackedRows);
    mins = scales + places * kPackedRows;
    halves = reinterpret_cast<int32_t*>(mins + places * kPackedRows);
    half_mins = halves + places * 2 * kPackedRows;
  }
  int64_t place(int64_t g, int64_t lane) const { return lane * groups + g; }
};

// (rows, 256) codes of group g to their places.
void arrange_codes(const uint8_t* codes, int64_t g, const Strip& strip) {
  for (int64_t pair = 0; pair < kLanes / 2; ++pair) {
    for (int64_t half = 0; half < 2; ++half) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) x[i] = _mm512_load_si512(codes + (16 * half + i) * kGroupColumns + 64 * pair);
      transpose_16x16(x);
      for (int64_t b = 0; b < 2; ++b) {
        uint8_t* to = strip.codes + strip.place(g, 2 * pair + b) * kBlockColumns * kPackedRows + 64 * half;
#pragma GCC unroll 8
        for (int j = 0; j < 8; ++j) _mm512_store_si512(to + j * 4 * kPackedRows, x[8 * b + j]);
      }
    }
  }
}

template <base::WeightFormat kFormat>
void pack(const uint8_t* weights, int64_t row_bytes, int64_t rows, int64_t columns, void* memory) {
  using Isa = Avx512Vnni;
  constexpr IntegerForm kForm = integer_form(kFormat);
  constexpr int64_t kLinesAhead = 6;
  const Strip strip(memory, columns);
  constexpr int64_t kGroupBytes = group_bytes(kFormat);
  alignas(64) uint8_t codes[kPackedRows * kGroupColumns];
  std::memset(codes + rows * kGroupColumns, 0, static_cast<size_t>((kPackedRows - rows) * kGroupColumns));
  for (int64_t g = 0; g < strip.groups; ++g) {
    for (int64_t r = 0; r < kPackedRows; ++r) {
      alignas(32) float scale[8] = {}, min[8] = {};
      alignas(32) int32_t half[16] = {}, half_min[16] = {};
      if (r < rows) {
        const uint8_t* row = weights + r * row_bytes;
        const IntegerGroup<Isa> group = IntegerUnpack<Isa, kFormat>::read(row, g, strip.blocks);
        for (int64_t line = 0; line * 64 < kGroupBytes; ++line)
          __builtin_prefetch(row + (g + 1) * kGroupBytes + (line + kLinesAhead) * 64);
        for (int64_t b = 0; b < kLanes; ++b)
          _mm256_store_si256(reinterpret_cast<__m256i*>(codes + r * kGroupColumns + 32 * b), group.codes[b]);
        _mm256_store_ps(scale, group.scale);
        if constexpr (kForm.has_min || kForm.has_half_min) _mm256_store_ps(min, group.min);
        for (int h = 0; h < 2; ++h) {
          if constexpr (kForm.has_halves) _mm256_store_si256(reinterpret_cast<__m256i*>(half + 8 * h), group.halves[h]);
          if constexpr (kForm.has_half_min)
            _mm256_store_si256(reinterpret_cast<__m256i*>(half_min + 8 * h), group.half_mins[h]);
        }
      }
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const int64_t place = strip.place(g, lane);
        strip.scales[place * kPackedRows + r] = scale[lane];
        if constexpr (kForm.has_min || kForm.has_half_min) strip.mins[place * kPackedRows + r] = min[lane];
        for (int h = 0; h < 2; ++h) {
          const int64_t at = (place * 2 + h) * kPackedRows + r;
          if constexpr (kForm.has_halves) strip.halves[at] = half[8 * h + lane];
          if constexpr (kForm.has_half_min) strip.half_mins[at] = half_min[8 * h + lane];
        }
      }
    }
    arrange_codes(codes, g, strip);
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

// Steps [kFrom, kTo) of a block.
template <int64_t kCount, int kFrom, int kTo>
[[gnu::always_inline]] inline void multiply_steps(const uint8_t* weights, const int8_t* codes, int64_t stride,
                                                  Ints<kCount>& sums) {
#pragma GCC unroll 6
  for (int64_t i = 0; i < kCount; ++i) sums[i][0] = sums[i][1] = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int j = kFrom; j < kTo; ++j) {
    const __m512i one = _mm512_load_si512(weights + j * 128), two = _mm512_load_si512(weights + j * 128 + 64);
#pragma GCC unroll 6
    for (int64_t i = 0; i < kCount; ++i) {
      const __m512i x = broadcast4(codes + i * stride + 4 * j);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], one, x);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], two, x);
    }
  }
}

// sums = factor * (sums - (sum of the activation's codes << kShift)), of half a block.
template <int64_t kCount, int kShift>
[[gnu::always_inline]] inline void weigh_half(const int32_t* factors, const int32_t* halves, int64_t stride,
                                              Ints<kCount>& sums) {
  const __m512i factor[2] = {_mm512_load_si512(factors), _mm512_load_si512(factors + 16)};
#pragma GCC unroll 6
  for (int64_t i = 0; i < kCount; ++i) {
    for (int h = 0; h < 2; ++h) {
      if constexpr (kShift >= 0)
        sums[i][h] = _mm512_sub_epi32(sums[i][h], _mm512_slli_epi32(_mm512_set1_epi32(halves[i * stride]), kShift));
      sums[i][h] = _mm512_mullo_epi32(sums[i][h], factor[h]);
    }
  }
}

template <base::WeightFormat kFormat, int64_t kCount>
void multiply_fixed(const Strip& strip, const RoundedRows& rows, int64_t first, float* out) {
  constexpr IntegerForm kForm = integer_form(kFormat);
  const int64_t groups = strip.groups, stride = rows.stride;
  alignas(64) float lanes[kLanes][kCount][kPackedRows];
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    Floats<kCount> total;
    for (auto& t : total) t[0] = t[1] = _mm512_setzero_ps();
    for (int64_t g = 0; 8 * g + lane < strip.blocks; ++g) {
      const int64_t place = strip.place(g, lane);
      const uint8_t* weights = strip.codes + place * kBlockColumns * kPackedRows;
      const int8_t* codes = rows.codes + first * stride + g * kGroupColumns + lane * kBlockColumns;
      const int32_t* halves = rows.halves + (first * groups + g) * 16 + lane;
      Ints<kCount> sums;
      if constexpr (kForm.has_halves) {
        const int32_t* factors = strip.halves + place * 2 * kPackedRows;
        Ints<kCount> more;
        multiply_steps<kCount, 0, 4>(weights, codes, stride, sums);
        weigh_half<kCount, kForm.shift>(factors, halves, groups * 16, sums);
        multiply_steps<kCount, 4, 8>(weights, codes, stride, more);
        weigh_half<kCount, kForm.shift>(factors + kPackedRows, halves + 8, groups * 16, more);
        for (int64_t i = 0; i < kCount; ++i) {
          for (int h = 0; h < 2; ++h) sums[i][h] = _mm512_add_epi32(sums[i][h], more[i][h]);
        }
      } else {
        multiply_steps<kCount, 0, 8>(weights, codes, stride, sums);
      }
#pragma GCC unroll 2
      for (int h = 0; h < 2; ++h) {
        const __m512 scale = _mm512_load_ps(strip.scales + place * kPackedRows + 16 * h);
#pragma GCC unroll 6
        for (int64_t i = 0; i < kCount; ++i) {
          const int64_t at = ((first + i) * groups + g) * 8 + lane;
          __m512i sum = sums[i][h];
          if constexpr (kForm.shift >= 0 && !kForm.has_halves) {
            const __m512i of_codes = _mm512_set1_epi32(halves[i * groups * 16] + halves[i * groups * 16 + 8]);
            sum = _mm512_sub_epi32(sum, _mm512_slli_epi32(of_codes, kForm.shift));
          }
          const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(rows.scales[at]));
          total[i][h] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(sum), total[i][h]);
          if constexpr (kForm.has_min) {
            const __m512 min = _mm512_load_ps(strip.mins + place * kPackedRows + 16 * h);
            total[i][h] = _mm512_fnmadd_ps(min, _mm512_set1_ps(rows.sums[at]), total[i][h]);
          }
          if constexpr (kForm.has_half_min) {
            const int32_t* factors = strip.half_mins + place * 2 * kPackedRows + 16 * h;
            const __m512 min = _mm512_load_ps(strip.mins + place * kPackedRows + 16 * h);
            const __m512i one = _mm512_set1_epi32(halves[i * groups * 16]),
                          two = _mm512_set1_epi32(halves[i * groups * 16 + 8]);
            const __m512i mins = _mm512_add_epi32(_mm512_mullo_epi32(one, _mm512_load_si512(factors)),
                                                  _mm512_mullo_epi32(two, _mm512_load_si512(factors + kPackedRows)));
            total[i][h] = _mm512_fnmadd_ps(_mm512_mul_ps(min, _mm512_set1_ps(rows.scales[at])),
                                           _mm512_cvtepi32_ps(mins), total[i][h]);
          }
        }
      }
    }
    for (int64_t i = 0; i < kCount; ++i) {
      for (int h = 0; h < 2; ++h) _mm512_store_ps(&lanes[lane][i][16 * h], total[i][h]);
    }
  }
  for (int64_t i = 0; i < kCount; ++i) {
    for (int64_t r = 0; r < kPackedRows; r += 16) {
      auto four = [&](int64_t lane) {
        return _mm512_add_ps(_mm512_load_ps(&lanes[lane][i][r]), _mm512_load_ps(&lanes[lane + 4][i][r]));
      };
      _mm512_storeu_ps(out + i * kPackedRows + r,
                       _mm512_add_ps(_mm512_add_ps(four(0), four(2)), _mm512_add_ps(four(1), four(3))));
    }
  }
}

template <base::WeightFormat kFormat>
void multiply(const void* memory, const RoundedRows& rows, int64_t first, int64_t count, float* out) {
  const Strip strip(memory, rows.columns);
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

IntegerStripKernel avx512_vnni_strip_kernel(base::WeightFormat format) {
  IntegerStripKernel kernel;
  visit_integer_format(format, [&]<base::WeightFormat kFormat>() { kernel = {pack<kFormat>, multiply<kFormat>}; });
  return kernel;
}

}  // namespace sinter::kernels::cpu
