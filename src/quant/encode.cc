#include "quant/encode.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>

#include "base/block_decode.h"
#include "base/dtype.h"
#include "base/error.h"
#include "quant/fit.h"

namespace sinter::quant {
namespace {

using base::WeightFormat;

// Stores a half and gives the number it then is.
float put_half(uint8_t* at, float value) {
  const base::f16 half(value);
  std::memcpy(at, &half.bits, 2);
  return static_cast<float>(half);
}

float inverse(float x) { return x != 0.0f ? 1.0f / x : 0.0f; }

// ---- 32 numbers with a scale ---------------------------------------------------------------------------------------

// The number of largest magnitude, with its sign.
float extreme(const float* x, int count) {
  float best = 0;
  for (int i = 0; i < count; ++i) {
    if (std::fabs(x[i]) > std::fabs(best)) best = x[i];
  }
  return best;
}

void encode_q8_0(const float* x, const float*, uint8_t* out) {
  const float d = std::fabs(extreme(x, 32)) / 127.0f, factor = inverse(d);
  put_half(out, d);
  for (int i = 0; i < 32; ++i) out[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * factor)));
}

// Packs codes 0 to 31 of q5_0 and q5_1: low halves, then the fifth bits.
void put_five_bits(const uint8_t* codes, uint8_t* high, uint8_t* low) {
  std::memset(high, 0, 4);
  for (int j = 0; j < 16; ++j) {
    low[j] = static_cast<uint8_t>((codes[j] & 15) | (codes[j + 16] & 15) << 4);
    high[j / 8] = static_cast<uint8_t>(high[j / 8] | (codes[j] >> 4) << j % 8);
    high[2 + j / 8] = static_cast<uint8_t>(high[2 + j / 8] | (codes[j + 16] >> 4) << j % 8);
  }
}

// q4_0 and q5_0: codes around `middle`, the extreme at the lower end.
template <int kMiddle>
void encode_symmetric(const float* x, const float* importance, uint8_t* out) {
  std::array<uint8_t, 32> codes;
  if (importance) {
    std::array<float, 32> weights;
    weigh(x, importance, 32, weights.data());
    std::array<int8_t, 32> signed_codes;
    const float d = put_half(out, fit_symmetric(x, weights.data(), 32, kMiddle, signed_codes.data()));
    const float factor = inverse(d);
    for (size_t i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(std::lround(x[i] * factor)), -kMiddle, kMiddle - 1) +
                                      kMiddle);
  } else {
    const float d = extreme(x, 32) / static_cast<float>(-kMiddle), factor = inverse(d);
    put_half(out, d);
    for (size_t i = 0; i < 32; ++i) {
      const int code = static_cast<int8_t>(x[i] * factor + (static_cast<float>(kMiddle) + 0.5f));
      codes[i] = static_cast<uint8_t>(std::min(2 * kMiddle - 1, code));
    }
  }
  if (kMiddle == 8) {
    for (size_t j = 0; j < 16; ++j) out[2 + j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
  } else {
    put_five_bits(codes.data(), out + 2, out + 6);
  }
}

// q4_1 and q5_1: a scale and a minimum.
template <int kLargest>
void encode_affine(const float* x, const float* importance, uint8_t* out) {
  std::array<uint8_t, 32> codes;
  float d, m;
  if (importance) {
    std::array<float, 32> weights;
    weigh(x, importance, 32, weights.data());
    const AffineFit fit = fit_affine(x, weights.data(), 32, kLargest, codes.data(), false);
    d = put_half(out, fit.scale), m = put_half(out + 2, -fit.min);
    const float factor = inverse(d);
    for (size_t i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(std::lround((x[i] - m) * factor)), 0, kLargest));
  } else {
    const auto [low, high] = std::minmax_element(x, x + 32);
    d = (*high - *low) / static_cast<float>(kLargest), m = *low;
    const float factor = inverse(d);
    put_half(out, d), put_half(out + 2, m);
    for (size_t i = 0; i < 32; ++i)
      codes[i] = static_cast<uint8_t>(std::min(kLargest, static_cast<int>((x[i] - m) * factor + 0.5f)));
  }
  if (kLargest == 15) {
    for (size_t j = 0; j < 16; ++j) out[4 + j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
  } else {
    put_five_bits(codes.data(), out + 4, out + 8);
  }
}

void encode_mxfp4(const float* x, const float*, uint8_t* out) {
  const float largest = std::fabs(extreme(x, 32));
  const int e = largest > 0 ? static_cast<int>(std::floor(std::log2(largest))) - 2 + 127 : 0;
  out[0] = static_cast<uint8_t>(std::clamp(e, 0, 254));
  const float half = base::block::half_of_e8m0(out[0]);
  auto code_of = [&](float value) {
    int best = 0;
    float least = std::fabs(value);
    for (int code = 1; code < 16; ++code) {
      const float error = std::fabs(static_cast<float>(base::block::kFp4Doubled[code]) * half - value);
      if (error < least) least = error, best = code;
    }
    return best;
  };
  for (int j = 0; j < 16; ++j) out[1 + j] = static_cast<uint8_t>(code_of(x[j]) | code_of(x[j + 16]) << 4);
}

void encode_iq4_nl(const float* x, const float* importance, uint8_t* out) {
  std::array<float, 32> weights;
  weigh(x, importance, 32, weights.data());
  std::array<uint8_t, 32> codes;
  const float d = put_half(out, fit_table(x, weights.data(), 32, codes.data()));
  nearest_of_table(x, 32, d, codes.data());
  for (size_t j = 0; j < 16; ++j) out[2 + j] = static_cast<uint8_t>(codes[j] | codes[j + 16] << 4);
}

// ---- 256 numbers in sub-blocks -------------------------------------------------------------------------------------

constexpr int kSuper = 256;

// Weights of a super-block's columns: the importance and, `by_size`, the numbers' own size beside that of their
// sub-block. That helps where codes are few: with 15 steps and a minimum models are better without (docs/gguf.md).
struct Weights {
  std::array<float, kSuper> values;
  Weights(const float* x, const float* importance, int sub, bool by_size = true) {
    if (!by_size) {
      for (size_t i = 0; i < kSuper; ++i) values[i] = importance ? importance[i] : 1.0f;
      return;
    }
    for (int i = 0; i < kSuper; i += sub) weigh(x + i, importance ? importance + i : nullptr, sub, values.data() + i);
  }
};

// q2_k, q4_k, q5_k: every sub-block has a scale and a minimum, which are whole multiples of two halves.
struct AffineSubBlocks {
  std::array<uint8_t, 16> scales{}, mins{};
  float d = 0, dmin = 0;
  std::array<uint8_t, kSuper> codes;
};

template <int kSub, int kLargest, int kScaleSteps>
AffineSubBlocks fit_affine_sub_blocks(const float* x, const float* importance, uint8_t* d_at, uint8_t* dmin_at) {
  constexpr int kCount = kSuper / kSub;
  const Weights weights(x, importance, kSub, kLargest < 15);
  AffineSubBlocks result;
  std::array<AffineFit, kCount> fits;
  float largest_scale = 0, largest_min = 0;
  for (int s = 0; s < kCount; ++s) {
    fits[s] =
        fit_affine(x + s * kSub, weights.values.data() + s * kSub, kSub, kLargest, result.codes.data() + s * kSub);
    largest_scale = std::max(largest_scale, fits[s].scale);
    largest_min = std::max(largest_min, fits[s].min);
  }
  result.d = put_half(d_at, largest_scale / static_cast<float>(kScaleSteps));
  result.dmin = put_half(dmin_at, largest_min / static_cast<float>(kScaleSteps));
  for (int s = 0; s < kCount; ++s) {
    auto steps = [](float value, float unit) {
      return std::clamp(static_cast<int>(std::lround(value * inverse(unit))), 0, kScaleSteps);
    };
    const SubBlock sub{x + s * kSub, weights.values.data() + s * kSub, kSub, kLargest};
    const auto [scale, min] = best_steps(sub, result.d, result.dmin, steps(fits[s].scale, result.d),
                                         steps(fits[s].min, result.dmin), kScaleSteps, result.codes.data() + s * kSub);
    result.scales[s] = static_cast<uint8_t>(scale), result.mins[s] = static_cast<uint8_t>(min);
  }
  return result;
}

void encode_q2_k(const float* x, const float* importance, uint8_t* out) {
  const AffineSubBlocks fit = fit_affine_sub_blocks<16, 3, 15>(x, importance, out + 80, out + 82);
  for (size_t s = 0; s < 16; ++s) out[s] = static_cast<uint8_t>(fit.scales[s] | fit.mins[s] << 4);
  std::memset(out + 16, 0, 64);
  for (int i = 0; i < kSuper; ++i) {
    const int s = i / 16;  // as decode() reads it
    uint8_t& byte = out[16 + s / 8 * 32 + s % 2 * 16 + i % 16];
    byte = static_cast<uint8_t>(byte | fit.codes[static_cast<size_t>(i)] << s % 8 / 2 * 2);
  }
}

// Six bits each of eight scales and minima in twelve bytes.
void put_scales_k4(const AffineSubBlocks& fit, uint8_t* out) {
  std::memset(out, 0, 12);
  for (size_t j = 0; j < 8; ++j) {
    const int scale = fit.scales[j], min = fit.mins[j];
    if (j < 4) {
      out[j] = static_cast<uint8_t>(out[j] | scale);
      out[j + 4] = static_cast<uint8_t>(out[j + 4] | min);
    } else {
      out[j + 4] = static_cast<uint8_t>((scale & 15) | (min & 15) << 4);
      out[j - 4] = static_cast<uint8_t>(out[j - 4] | (scale >> 4) << 6);
      out[j] = static_cast<uint8_t>(out[j] | (min >> 4) << 6);
    }
  }
}

template <int kLargest>  // 15: q4_k, 31: q5_k
void encode_k4(const float* x, const float* importance, uint8_t* out) {
  const AffineSubBlocks fit = fit_affine_sub_blocks<32, kLargest, 63>(x, importance, out, out + 2);
  put_scales_k4(fit, out + 4);
  uint8_t *high = out + 16, *low = out + (kLargest == 15 ? 16 : 48);
  std::memset(high, 0, kLargest == 15 ? 128 : 160);
  for (int i = 0; i < kSuper; ++i) {
    const int s = i / 32, l = i % 32, code = fit.codes[static_cast<size_t>(i)];
    low[s / 2 * 32 + l] = static_cast<uint8_t>(low[s / 2 * 32 + l] | (code & 15) << 4 * (s % 2));
    if (kLargest == 31) high[l] = static_cast<uint8_t>(high[l] | (code >> 4) << s);
  }
}

// q3_k, q6_k, iq4_xs: every sub-block has a signed scale, a whole multiple of one half.
struct SignedSubBlocks {
  std::array<int, 16> scales{};
  float d = 0;
  std::array<int8_t, kSuper> codes;
};

template <int kSub, int kMiddle, int kScaleMiddle>
SignedSubBlocks fit_signed_sub_blocks(const float* x, const float* importance, uint8_t* d_at) {
  constexpr int kCount = kSuper / kSub;
  const Weights weights(x, importance, kSub);
  SignedSubBlocks result;
  std::array<float, kCount> scales;
  for (int s = 0; s < kCount; ++s)
    scales[s] =
        fit_symmetric(x + s * kSub, weights.values.data() + s * kSub, kSub, kMiddle, result.codes.data() + s * kSub);
  result.d = put_half(d_at, extreme(scales.data(), kCount) / static_cast<float>(-kScaleMiddle));
  for (int s = 0; s < kCount; ++s) {
    const int steps =
        std::clamp(static_cast<int>(std::lround(scales[s] * inverse(result.d))), -kScaleMiddle, kScaleMiddle - 1);
    result.scales[s] = best_signed_steps({x + s * kSub, weights.values.data() + s * kSub, kSub, kMiddle}, result.d,
                                         steps, kScaleMiddle, result.codes.data() + s * kSub);
  }
  return result;
}

void encode_q6_k(const float* x, const float* importance, uint8_t* out) {
  const SignedSubBlocks fit = fit_signed_sub_blocks<16, 32, 128>(x, importance, out + 208);
  std::memset(out, 0, 192);
  for (size_t s = 0; s < 16; ++s) out[192 + s] = static_cast<uint8_t>(static_cast<int8_t>(fit.scales[s]));
  for (int i = 0; i < kSuper; ++i) {
    const int s = i / 16, l = i % 16, half = s / 8, group = s % 8 / 2, code = fit.codes[static_cast<size_t>(i)] + 32;
    uint8_t &low = out[half * 64 + group % 2 * 32 + s % 2 * 16 + l], &high = out[128 + half * 32 + s % 2 * 16 + l];
    low = static_cast<uint8_t>(low | (code & 15) << 4 * (group / 2));
    high = static_cast<uint8_t>(high | (code >> 4) << 2 * group);
  }
}

void encode_q3_k(const float* x, const float* importance, uint8_t* out) {
  const SignedSubBlocks fit = fit_signed_sub_blocks<16, 4, 32>(x, importance, out + 108);
  std::memset(out, 0, 108);
  for (size_t j = 0; j < 16; ++j) {
    const int scale = fit.scales[j] + 32;
    uint8_t& low = out[96 + j % 8];
    low = static_cast<uint8_t>(low | (scale & 15) << (j < 8 ? 0 : 4));
    uint8_t& high = out[96 + 8 + j % 4];
    high = static_cast<uint8_t>(high | (scale >> 4) << 2 * (j / 4));
  }
  for (int i = 0; i < kSuper; ++i) {
    const int s = i / 16, l = i % 16, code = fit.codes[static_cast<size_t>(i)] + 4;
    uint8_t &q = out[32 + s / 8 * 32 + s % 2 * 16 + l], &high = out[s % 2 * 16 + l];
    q = static_cast<uint8_t>(q | (code & 3) << s % 8 / 2 * 2);
    if (code & 4) high = static_cast<uint8_t>(high | 1 << s / 2);
  }
}

void encode_iq4_xs(const float* x, const float* importance, uint8_t* out) {
  const Weights weights(x, importance, 32);
  std::array<float, 8> scales;
  std::array<uint8_t, kSuper> codes;
  for (int s = 0; s < 8; ++s)
    scales[static_cast<size_t>(s)] = fit_table(x + s * 32, weights.values.data() + s * 32, 32, codes.data() + s * 32);
  const float d = put_half(out, extreme(scales.data(), 8) / -32.0f);
  std::memset(out + 2, 0, 6);
  uint32_t high = 0;
  for (int s = 0; s < 8; ++s) {
    const int steps = std::clamp(static_cast<int>(std::lround(scales[static_cast<size_t>(s)] * inverse(d))), -32, 31);
    nearest_of_table(x + s * 32, 32, d * static_cast<float>(steps), codes.data() + s * 32);
    out[4 + s / 2] = static_cast<uint8_t>(out[4 + s / 2] | ((steps + 32) & 15) << 4 * (s % 2));
    high |= static_cast<uint32_t>((steps + 32) >> 4) << 2 * s;
    for (int l = 0; l < 16; ++l)
      out[8 + s * 16 + l] = static_cast<uint8_t>(codes[static_cast<size_t>(s * 32 + l)] |
                                                 codes[static_cast<size_t>(s * 32 + 16 + l)] << 4);
  }
  out[2] = static_cast<uint8_t>(high), out[3] = static_cast<uint8_t>(high >> 8);
}

struct Encoder {
  WeightFormat format;
  void (*encode)(const float* x, const float* importance, uint8_t* out);
};
constexpr Encoder kEncoders[] = {
    {WeightFormat::q8_0, encode_q8_0},          {WeightFormat::q4_0, encode_symmetric<8>},
    {WeightFormat::q5_0, encode_symmetric<16>}, {WeightFormat::q4_1, encode_affine<15>},
    {WeightFormat::q5_1, encode_affine<31>},    {WeightFormat::q2_k, encode_q2_k},
    {WeightFormat::q3_k, encode_q3_k},          {WeightFormat::q4_k, encode_k4<15>},
    {WeightFormat::q5_k, encode_k4<31>},        {WeightFormat::q6_k, encode_q6_k},
    {WeightFormat::iq4_nl, encode_iq4_nl},      {WeightFormat::iq4_xs, encode_iq4_xs},
    {WeightFormat::mxfp4, encode_mxfp4},
};

}  // namespace

bool can_encode(WeightFormat format) {
  return std::any_of(std::begin(kEncoders), std::end(kEncoders), [&](const Encoder& e) { return e.format == format; });
}

std::vector<std::string> encodable_names() {
  std::vector<std::string> names;
  for (const Encoder& encoder : kEncoders) names.emplace_back(base::name_of(encoder.format));
  return names;
}

void encode_row(WeightFormat format, const float* x, const float* importance, int64_t count, uint8_t* out) {
  for (int64_t i = 0; i < count; ++i)
    SINTER_CHECK(std::isfinite(x[i]), "a weight is {}, which {} cannot hold", x[i], base::name_of(format));
  for (const Encoder& encoder : kEncoders) {
    if (encoder.format != format) continue;
    const base::WeightFormatInfo& info = base::info_of(format);
    for (int64_t i = 0; i < count; i += info.block_elements, out += info.block_bytes)
      encoder.encode(x + i, importance ? importance + i : nullptr, out);
    return;
  }
  base::fail("weights cannot be written in {}", base::name_of(format));
}

}  // namespace sinter::quant
