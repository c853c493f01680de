// How each block format is read: decode<format>(block, put) calls put(i, value) for every number of one block. All of
// it is constexpr, so that kernels for the GPU use the same text.
//
// The order of the roundings is the format's: first scale times sub-scale, then times code, then minus the minimum.
#pragma once
#include <array>
#include <bit>
#include <cstdint>

#include "base/weight_format.h"

namespace sinter::base::block {

constexpr uint16_t load_u16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }

// An IEEE half as f32, subnormals, infinities and NaN included.
constexpr float half_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  if (rest >= 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest >= 0x0400u) return std::bit_cast<float>(sign | ((rest << 13) + 0x38000000u));
  const float value = static_cast<float>(rest) * 0x1p-24f;
  return sign ? -value : value;
}
constexpr float load_half(const uint8_t* p) { return half_to_float(load_u16(p)); }

inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// e2m1, doubled so that all are whole.
inline constexpr int8_t kFp4Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr float kNf4Values[16] = {-1.0f,
                                         -0.6961928009986877f,
                                         -0.5250730514526367f,
                                         -0.39491748809814453f,
                                         -0.28444138169288635f,
                                         -0.18477343022823334f,
                                         -0.09105003625154495f,
                                         0.0f,
                                         0.07958029955625534f,
                                         0.16093020141124725f,
                                         0.24611230194568634f,
                                         0.33791524171829224f,
                                         0.44070982933044434f,
                                         0.5626170039176941f,
                                         0.7229568362236023f,
                                         1.0f};

// bitsandbytes' 4-bit float over its largest value: codes 0 to 7, bit 3 is the sign.
inline constexpr float kFp4Values[8] = {0.0f, 0.0625f / 12, 0.66666667f, 1.0f, 0.33333333f, 0.5f, 0.16666667f, 0.25f};

// The number behind a code of 4 bits, before its scale; nf4 and fp4 are bitsandbytes'. Each copies its table into a
// local constant: a kernel for the GPU that indexes an array of the namespace compiles, and reads an address of the
// host.
constexpr int iq4_value(int code) {
  constexpr auto kTable = std::to_array(kIq4Values);
  return kTable[static_cast<size_t>(code)];
}
constexpr int fp4_doubled(int code) {
  constexpr auto kTable = std::to_array(kFp4Doubled);
  return kTable[static_cast<size_t>(code)];
}
constexpr float nf4_value(int code) {
  constexpr auto kTable = std::to_array(kNf4Values);
  return kTable[static_cast<size_t>(code)];
}
constexpr float fp4_value(int code) {
  constexpr auto kTable = std::to_array(kFp4Values);
  const float value = kTable[static_cast<size_t>(code & 7)];
  return code & 8 ? -value : value;
}

// 2^(e - 127) / 2: the half goes with kFp4Doubled.
constexpr float half_of_e8m0(uint8_t e) {
  return std::bit_cast<float>(e < 2 ? 0x00200000u << e : static_cast<uint32_t>(e - 1) << 23);
}
// An unsigned e4m3 over two; 0x7f, its NaN, is read as 0.
constexpr float half_of_ue4m3(uint8_t x) {
  if (x == 0 || x == 0x7f) return 0.0f;
  const uint32_t exponent = x >> 3 & 15, mantissa = x & 7;
  if (exponent == 0) return static_cast<float>(mantissa) * 0x1p-10f;
  return std::bit_cast<float>((exponent + 119) << 23 | mantissa << 20);
}

// Scale and minimum number j, six bits each, of the twelve bytes in q4_k and q5_k.
struct ScaleMin {
  int scale, min;
};
constexpr ScaleMin scale_min_k4(const uint8_t* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {(s[j + 4] & 15) | (s[j - 4] >> 6) << 4, s[j + 4] >> 4 | (s[j] >> 6) << 4};
}
// Scale number j of the twelve bytes in q3_k, -32 to 31.
constexpr int scale_q3k(const uint8_t* s, int j) {
  const int low = j < 8 ? s[j] & 15 : s[j - 8] >> 4;
  return (low | (s[8 + j % 4] >> 2 * (j / 4) & 3) << 4) - 32;
}
// Scale number j of eight in iq4_xs, -32 to 31.
constexpr int scale_iq4xs(const uint8_t* block, int j) {
  return ((block[4 + j / 2] >> 4 * (j % 2) & 15) | (load_u16(block + 2) >> 2 * j & 3) << 4) - 32;
}

template <WeightFormat kFormat, class Put>
constexpr void decode(const uint8_t* block, Put&& put) {
  using enum WeightFormat;
  if constexpr (kFormat == q4_0 || kFormat == iq4_nl) {
    const float d = load_half(block);
    for (int j = 0; j < 16; ++j) {
      const int low = block[2 + j] & 15, high = block[2 + j] >> 4;
      put(j, static_cast<float>(kFormat == q4_0 ? low - 8 : iq4_value(low)) * d);
      put(j + 16, static_cast<float>(kFormat == q4_0 ? high - 8 : iq4_value(high)) * d);
    }
  } else if constexpr (kFormat == q4_1) {
    const float d = load_half(block), m = load_half(block + 2);
    for (int j = 0; j < 16; ++j) {
      put(j, static_cast<float>(block[4 + j] & 15) * d + m);
      put(j + 16, static_cast<float>(block[4 + j] >> 4) * d + m);
    }
  } else if constexpr (kFormat == q5_0 || kFormat == q5_1) {
    constexpr int kHigh = kFormat == q5_0 ? 2 : 4;
    const float d = load_half(block), m = kFormat == q5_0 ? 0.0f : load_half(block + 2);
    for (int j = 0; j < 16; ++j) {
      const int first = (block[kHigh + 4 + j] & 15) | (block[kHigh + j / 8] >> j % 8 & 1) << 4;
      const int second = block[kHigh + 4 + j] >> 4 | (block[kHigh + 2 + j / 8] >> j % 8 & 1) << 4;
      if constexpr (kFormat == q5_0) {
        put(j, static_cast<float>(first - 16) * d);
        put(j + 16, static_cast<float>(second - 16) * d);
      } else {
        put(j, static_cast<float>(first) * d + m);
        put(j + 16, static_cast<float>(second) * d + m);
      }
    }
  } else if constexpr (kFormat == q8_0) {
    const float d = load_half(block);
    for (int j = 0; j < 32; ++j) put(j, static_cast<float>(static_cast<int8_t>(block[2 + j])) * d);
  } else if constexpr (kFormat == q2_k) {
    const float d = load_half(block + 80), min = load_half(block + 82);
    for (int s = 0; s < 16; ++s) {  // sub-blocks of 16
      const float dl = d * static_cast<float>(block[s] & 15), ml = min * static_cast<float>(block[s] >> 4);
      const uint8_t* q = block + 16 + s / 8 * 32 + s % 2 * 16;
      for (int l = 0; l < 16; ++l) put(s * 16 + l, dl * static_cast<float>(q[l] >> s % 8 / 2 * 2 & 3) - ml);
    }
  } else if constexpr (kFormat == q3_k) {
    const float d = load_half(block + 108);
    for (int s = 0; s < 16; ++s) {
      const float dl = d * static_cast<float>(scale_q3k(block + 96, s));
      const uint8_t *q = block + 32 + s / 8 * 32 + s % 2 * 16, *high = block + s % 2 * 16;
      for (int l = 0; l < 16; ++l) {
        const int code = (q[l] >> s % 8 / 2 * 2 & 3) - (high[l] >> s / 2 & 1 ? 0 : 4);
        put(s * 16 + l, dl * static_cast<float>(code));
      }
    }
  } else if constexpr (kFormat == q4_k || kFormat == q5_k) {
    const float d = load_half(block), min = load_half(block + 2);
    const uint8_t *high = block + 16, *q = block + (kFormat == q4_k ? 16 : 48);
    for (int s = 0; s < 8; ++s) {  // sub-blocks of 32
      const ScaleMin sm = scale_min_k4(block + 4, s);
      const float dl = d * static_cast<float>(sm.scale), ml = min * static_cast<float>(sm.min);
      for (int l = 0; l < 32; ++l) {
        int code = q[s / 2 * 32 + l] >> 4 * (s % 2) & 15;
        if constexpr (kFormat == q5_k) code |= (high[l] >> s & 1) << 4;
        put(s * 32 + l, dl * static_cast<float>(code) - ml);
      }
    }
  } else if constexpr (kFormat == q6_k) {
    const float d = load_half(block + 208);
    for (int s = 0; s < 16; ++s) {
      const float dl = d * static_cast<float>(static_cast<int8_t>(block[192 + s]));
      const int half = s / 8, group = s % 8 / 2;  // groups of 32 in a half of 128
      const uint8_t *low = block + half * 64 + group % 2 * 32 + s % 2 * 16,
                    *high = block + 128 + half * 32 + s % 2 * 16;
      for (int l = 0; l < 16; ++l) {
        const int code = (low[l] >> 4 * (group / 2) & 15) | (high[l] >> 2 * group & 3) << 4;
        put(s * 16 + l, dl * static_cast<float>(code - 32));
      }
    }
  } else if constexpr (kFormat == iq4_xs) {
    const float d = load_half(block);
    for (int s = 0; s < 8; ++s) {
      const float dl = d * static_cast<float>(scale_iq4xs(block, s));
      for (int l = 0; l < 16; ++l) {
        put(s * 32 + l, dl * static_cast<float>(iq4_value(block[8 + s * 16 + l] & 15)));
        put(s * 32 + 16 + l, dl * static_cast<float>(iq4_value(block[8 + s * 16 + l] >> 4)));
      }
    }
  } else if constexpr (kFormat == mxfp4) {
    const float d = half_of_e8m0(block[0]);
    for (int j = 0; j < 16; ++j) {
      put(j, static_cast<float>(fp4_doubled(block[1 + j] & 15)) * d);
      put(j + 16, static_cast<float>(fp4_doubled(block[1 + j] >> 4)) * d);
    }
  } else if constexpr (kFormat == nvfp4) {
    for (int s = 0; s < 4; ++s) {
      const float d = half_of_ue4m3(block[s]);
      for (int j = 0; j < 8; ++j) {
        put(s * 16 + j, static_cast<float>(fp4_doubled(block[4 + s * 8 + j] & 15)) * d);
        put(s * 16 + 8 + j, static_cast<float>(fp4_doubled(block[4 + s * 8 + j] >> 4)) * d);
      }
    }
  } else if constexpr (kFormat == q1_0) {
    const float d = load_half(block);
    for (int j = 0; j < 128; ++j) put(j, block[2 + j / 8] >> j % 8 & 1 ? d : -d);
  } else if constexpr (kFormat == q2_0) {
    const float d = load_half(block);
    for (int j = 0; j < 64; ++j) put(j, static_cast<float>((block[2 + j / 4] >> j % 4 * 2 & 3) - 1) * d);
  } else if constexpr (kFormat == tq1_0) {
    const float d = load_half(block + 52);
    // Digit n of a byte that holds five digits of base 3.
    auto digit = [](int byte, int n) {
      constexpr int kPowers[5] = {1, 3, 9, 27, 81};
      return ((byte * kPowers[n] & 255) * 3 >> 8) - 1;
    };
    for (int n = 0; n < 5; ++n) {
      for (int m = 0; m < 32; ++m) put(n * 32 + m, static_cast<float>(digit(block[m], n)) * d);
      for (int m = 0; m < 16; ++m) put(160 + n * 16 + m, static_cast<float>(digit(block[32 + m], n)) * d);
    }
    for (int n = 0; n < 4; ++n) {
      for (int m = 0; m < 4; ++m) put(240 + n * 4 + m, static_cast<float>(digit(block[48 + m], n)) * d);
    }
  } else if constexpr (kFormat == tq2_0) {
    const float d = load_half(block + 64);
    for (int j = 0; j < 256; ++j) {
      const int code = block[j / 128 * 32 + j % 32] >> j % 128 / 32 * 2 & 3;
      put(j, static_cast<float>(code - 1) * d);
    }
  } else {
    static_assert(kFormat == q4_0, "no decoder for this format");
  }
}

// Calls visit.template operator()<format>() for a format with scales in its blocks that decode() knows; false for
// others.
template <class Visit>
constexpr bool visit_format(WeightFormat format, Visit&& visit) {
  using enum WeightFormat;
  switch (format) {
    case q4_0:
      visit.template operator()<q4_0>();
      return true;
    case q4_1:
      visit.template operator()<q4_1>();
      return true;
    case q5_0:
      visit.template operator()<q5_0>();
      return true;
    case q5_1:
      visit.template operator()<q5_1>();
      return true;
    case q8_0:
      visit.template operator()<q8_0>();
      return true;
    case q2_k:
      visit.template operator()<q2_k>();
      return true;
    case q3_k:
      visit.template operator()<q3_k>();
      return true;
    case q4_k:
      visit.template operator()<q4_k>();
      return true;
    case q5_k:
      visit.template operator()<q5_k>();
      return true;
    case q6_k:
      visit.template operator()<q6_k>();
      return true;
    case iq4_nl:
      visit.template operator()<iq4_nl>();
      return true;
    case iq4_xs:
      visit.template operator()<iq4_xs>();
      return true;
    case mxfp4:
      visit.template operator()<mxfp4>();
      return true;
    case nvfp4:
      visit.template operator()<nvfp4>();
      return true;
    case q1_0:
      visit.template operator()<q1_0>();
      return true;
    case q2_0:
      visit.template operator()<q2_0>();
      return true;
    case tq1_0:
      visit.template operator()<tq1_0>();
      return true;
    case tq2_0:
      visit.template operator()<tq2_0>();
      return true;
    default:
      return false;
  }
}

}  // namespace sinter::base::block
