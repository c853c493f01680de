#include "base/block_decode.h"
#include "base/blocks.h"
#include "base/dtype.h"
#include "base/error.h"

namespace sinter::base {
namespace {

float code_value(WeightFormat format, const uint8_t* codes, int64_t i) {
  const int byte = codes[format == WeightFormat::int8 || format == WeightFormat::fp8_e4m3 ? i : i / 2];
  switch (format) {
    case WeightFormat::nf4:
      return block::nf4_value(byte >> (i % 2 ? 0 : 4) & 15);
    case WeightFormat::fp4: {
      const int code = byte >> (i % 2 ? 0 : 4) & 15;
      return block::fp4_value(code);
    }
    case WeightFormat::int4:
      return static_cast<float>(byte >> (i % 2 ? 4 : 0) & 15);
    case WeightFormat::int8:
      return static_cast<float>(byte);
    default: {
      f8e4m3 value;
      value.bits = static_cast<uint8_t>(byte);
      return static_cast<float>(value);
    }
  }
}

}  // namespace

void dequantize_blocks(WeightFormat format, const void* source, const float* scales, float* destination,
                       int64_t count) {
  const WeightFormatInfo& info = info_of(format);
  const auto* bytes = static_cast<const uint8_t*>(source);
  if (info.scales == WeightScales::apart)
    return dequantize_row(format, source, {.scales = scales, .group = info.block_elements}, destination, count);
  const bool is_known = block::visit_format(format, [&]<WeightFormat kFormat>() {
    for (int64_t i = 0; i < count; i += info.block_elements, bytes += info.block_bytes) {
      float* y = destination + i;
      block::decode<kFormat>(bytes, [y](int j, float value) { y[j] = value; });
    }
  });
  SINTER_CHECK(is_known, "weights in {} cannot be read; convert the model to another type, for example q4_k_m",
               info.name);
}

void dequantize_row(WeightFormat format, const void* codes, const RowScales& row, float* destination, int64_t count) {
  SINTER_CHECK(row.scales && (row.group > 0 || row.permutation), "{} needs its scales", name_of(format));
  const auto* bytes = static_cast<const uint8_t*>(codes);
  const bool has_zero = format == WeightFormat::int4 || format == WeightFormat::int8;
  const float usual = format == WeightFormat::int4 ? 8.0f : 128.0f;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t g = row.permutation ? row.permutation[i] : i / row.group;
    float value = code_value(format, bytes, i);
    if (has_zero) value -= row.zeros ? row.zeros[g] : usual;
    destination[i] = value * row.scales[g];
  }
}

}  // namespace sinter::base
