#include "core/kv_format.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace sinter::core {
namespace {

using base::DType;

constexpr int64_t kBlock = 32, kScaleBytes = 2;

float load_scale(const std::byte* p) {
  base::f16 scale;
  std::memcpy(&scale.bits, p, kScaleBytes);
  return static_cast<float>(scale);
}

// Codes of numbers with one scale. `round` says where a half goes.
template <class Round>
void encode_codes(const float* x, int64_t count, std::byte* scale_at, std::byte* codes, bool by_stored_scale,
                  Round round) {
  float largest = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i])), is_finite &= std::isfinite(x[i]);
  if (!is_finite) largest = std::numeric_limits<float>::quiet_NaN();  // shows in whatever is computed from the row
  const base::f16 stored(largest / 127.0f);
  std::memcpy(scale_at, &stored.bits, kScaleBytes);
  const float scale = by_stored_scale ? static_cast<float>(stored) : largest / 127.0f;
  for (int64_t i = 0; i < count; ++i)
    codes[i] = static_cast<std::byte>(static_cast<int8_t>(scale > 0 ? round(x[i], scale) : 0.0f));
}

void decode_codes(const std::byte* codes, int64_t count, float scale, float* x) {
  for (int64_t i = 0; i < count; ++i) x[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
}

// All 256 numbers of an fp8 format.
const std::array<float, 256>& fp8_numbers(DType format) {
  static const auto all = [] {
    std::array<std::array<float, 256>, 2> tables;
    for (int i = 0; i < 256; ++i) {
      const auto bits = static_cast<uint8_t>(i);
      base::convert_elements(DType::f8e4m3, &bits, DType::f32, &tables[0][static_cast<size_t>(i)], 1);
      base::convert_elements(DType::f8e5m2, &bits, DType::f32, &tables[1][static_cast<size_t>(i)], 1);
    }
    return tables;
  }();
  return all[format == DType::f8e4m3 ? 0 : 1];
}

}  // namespace

base::DType parse_kv_format(std::string_view name) {
  if (name == "auto") return DType::f32;
  if (name == "fp8") return DType::f8e4m3;
  if (name == "int8") return DType::i8;
  if (name == "q8_0") return DType::u8;
  base::fail_usage("no format '{}' of the KV cache; known: auto, q8_0, int8, fp8", name);
}

std::string kv_format_name(DType format) {
  if (format == DType::i8) return "int8";
  if (format == DType::u8) return "q8_0";
  if (format == DType::f8e4m3) return "fp8";
  return std::string(base::dtype_name(format));
}

int64_t kv_row_elements(DType format, int64_t head_dim) {
  if (format == DType::i8) return head_dim + kScaleBytes;
  if (format != DType::u8) return head_dim;
  SINTER_CHECK(head_dim % kBlock == 0,
               "[kv_cache] heads of {} numbers cannot be kept in q8_0, whose blocks have 32; take int8 or fp8",
               head_dim);
  return head_dim / kBlock * (kBlock + kScaleBytes);
}

void encode_kv_row(DType format, const float* x, int64_t head_dim, float scale, void* row) {
  auto* bytes = static_cast<std::byte*>(row);
  if (format == DType::u8) {  // as ggml: the codes by the exact scale, halves away from zero
    for (int64_t i = 0; i < head_dim; i += kBlock, bytes += kBlock + kScaleBytes)
      encode_codes(x + i, kBlock, bytes, bytes + kScaleBytes, false,
                   [](float value, float by) { return std::round(value * (1.0f / by)); });
  } else if (format == DType::i8) {
    encode_codes(x, head_dim, bytes + head_dim, bytes, true,
                 [](float value, float by) { return std::clamp(std::nearbyint(value / by), -127.0f, 127.0f); });
  } else if (base::is_fp8(format)) {
    for (int64_t i = 0; i < head_dim; ++i) {
      const auto value = static_cast<float>(static_cast<double>(x[i]) / static_cast<double>(scale));
      base::convert_elements(DType::f32, &value, format, bytes + i, 1);
    }
  } else {
    base::convert_elements(DType::f32, x, format, row, static_cast<size_t>(head_dim));
  }
}

float kv_number(DType format, const void* row, int64_t head_dim, int64_t i) {
  const auto* bytes = static_cast<const std::byte*>(row);
  const std::byte* block = format == DType::u8 ? bytes + i / kBlock * (kBlock + kScaleBytes) : bytes;
  const std::byte code = format == DType::u8 ? block[kScaleBytes + i % kBlock] : bytes[i];
  return load_scale(format == DType::u8 ? block : bytes + head_dim) * static_cast<float>(static_cast<int8_t>(code));
}

void decode_kv_row(DType format, const void* row, int64_t head_dim, float scale, float* x) {
  const auto* bytes = static_cast<const std::byte*>(row);
  if (format == DType::u8) {
    for (int64_t i = 0; i < head_dim; i += kBlock, bytes += kBlock + kScaleBytes)
      decode_codes(bytes + kScaleBytes, kBlock, load_scale(bytes), x + i);
  } else if (format == DType::i8) {
    decode_codes(bytes, head_dim, load_scale(bytes + head_dim), x);
  } else if (base::is_fp8(format)) {
    const std::array<float, 256>& numbers = fp8_numbers(format);
    for (int64_t i = 0; i < head_dim; ++i) x[i] = scale * numbers[static_cast<size_t>(bytes[i])];
  } else {
    base::convert_elements(format, row, DType::f32, x, static_cast<size_t>(head_dim));
  }
}

}  // namespace sinter::core
