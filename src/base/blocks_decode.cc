#include "base/block_decode.h"
#include "base/blocks.h"
#include "base/error.h"

namespace sinter::base {
namespace {

// bitsandbytes' 4-bit float over its largest value: codes 0 to 7, bit 3 is the sign.
constexpr float kFp4Values[8] = {0.0f, 0.005208333f, 0.66666667f, 1.0f, 0.33333333f, 0.5f, 0.16666667f, 0.25f};

void dequantize_4bit(WeightFormat format, const uint8_t* codes, const float* scales, float* y, int64_t count) {
  SINTER_CHECK(scales, "{} needs its scales", name_of(format));
  for (int64_t i = 0; i < count; ++i) {
    const int code = codes[i / 2] >> (i % 2 ? 0 : 4) & 15;
    float value = format == WeightFormat::nf4 ? block::kNf4Values[code] : kFp4Values[code & 7];
    if (format == WeightFormat::fp4 && code & 8) value = -value;
    y[i] = value * scales[i / info_of(format).block_elements];
  }
}

}  // namespace

void dequantize_blocks(WeightFormat format, const void* source, const float* scales, float* destination,
                       int64_t count) {
  const WeightFormatInfo& info = info_of(format);
  const auto* bytes = static_cast<const uint8_t*>(source);
  if (info.scales == WeightScales::apart) return dequantize_4bit(format, bytes, scales, destination, count);
  const bool is_known = block::visit_format(format, [&]<WeightFormat kFormat>() {
    for (int64_t i = 0; i < count; i += info.block_elements, bytes += info.block_bytes) {
      float* y = destination + i;
      block::decode<kFormat>(bytes, [y](int j, float value) { y[j] = value; });
    }
  });
  SINTER_CHECK(is_known, "weights in {} cannot be read; convert the model to another type, for example q4_k_m",
               info.name);
}

}  // namespace sinter::base
