#include "base/dtype.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace sinter::base {
namespace {

struct Entry {
  DType dtype;
  size_t bytes;
  std::string_view name, safetensors, torch;
};

constexpr std::array<Entry, 15> kEntries{{
    {DType::f32, 4, "f32", "F32", "float32"},
    {DType::bf16, 2, "bf16", "BF16", "bfloat16"},
    {DType::f16, 2, "f16", "F16", "float16"},
    {DType::f64, 8, "f64", "F64", "float64"},
    {DType::i8, 1, "i8", "I8", "int8"},
    {DType::u8, 1, "u8", "U8", "uint8"},
    {DType::i16, 2, "i16", "I16", "int16"},
    {DType::u16, 2, "u16", "U16", "uint16"},
    {DType::i32, 4, "i32", "I32", "int32"},
    {DType::u32, 4, "u32", "U32", "uint32"},
    {DType::i64, 8, "i64", "I64", "int64"},
    {DType::u64, 8, "u64", "U64", "uint64"},
    {DType::boolean, 1, "bool", "BOOL", "bool"},
    {DType::f8e4m3, 1, "f8e4m3", "F8_E4M3", "float8_e4m3fn"},
    {DType::f8e5m2, 1, "f8e5m2", "F8_E5M2", "float8_e5m2"},
}};

const Entry& entry(DType dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

size_t dtype_bytes(DType dtype) { return entry(dtype).bytes; }
std::string_view dtype_name(DType dtype) { return entry(dtype).name; }
std::string_view dtype_safetensors_name(DType dtype) { return entry(dtype).safetensors; }

DType parse_dtype(std::string_view text) {
  for (const Entry& e : kEntries) {
    if (text == e.name || text == e.safetensors || text == e.torch) return e.dtype;
  }
  fail("unknown number format '{}'; known: f32, bf16, f16, f64, i8..i64, u8..u64, bool, f8e4m3, f8e5m2", text);
}

bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

bool is_fp8(DType dtype) { return dtype == DType::f8e4m3 || dtype == DType::f8e5m2; }

f16::f16(float value) {
  uint32_t u = std::bit_cast<uint32_t>(value);
  uint32_t sign = (u >> 16) & 0x8000u;
  uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x47800000u) {  // 65536 and above: infinity (65520 rounds up below)
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // subnormal half: let the FPU round by adding 0.5 in the right binade
    float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  } else {
    uint32_t rounded = magnitude + 0xc8000fffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | (rounded >> 13));
  }
}

f16::operator float() const {
  uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 0x1fu;
  uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  float value = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -value : value;
}

namespace {

// An fp8 format is told by its mantissa bits and the exponent of its smallest normal number.
template <int kMantissa, int kMinExponent>
uint8_t round_to_fp8(float value, float largest) {
  if (std::isnan(value)) return 0x7f;
  const uint32_t sign = (std::bit_cast<uint32_t>(value) >> 24) & 0x80u;
  const float magnitude = std::min(std::fabs(value), largest);
  uint32_t rounded;
  if (magnitude < std::ldexp(1.0f, kMinExponent)) {
    // Subnormal: let the FPU round by adding the number whose last bit is the format's smallest step.
    const float aligner = std::ldexp(1.0f, kMinExponent - kMantissa + 23);
    rounded = std::bit_cast<uint32_t>(magnitude + aligner) - std::bit_cast<uint32_t>(aligner);
  } else {
    constexpr int kShift = 23 - kMantissa;
    const uint32_t u = std::bit_cast<uint32_t>(magnitude);
    rounded = ((u + (1u << (kShift - 1)) - 1 + ((u >> kShift) & 1u)) >> kShift) -
              (static_cast<uint32_t>(126 + kMinExponent) << kMantissa);
  }
  return static_cast<uint8_t>(sign | rounded);
}

template <int kMantissa, int kMinExponent>
float fp8_magnitude(uint8_t bits) {
  const int exponent = (bits & 0x7f) >> kMantissa, mantissa = bits & ((1 << kMantissa) - 1);
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), kMinExponent - kMantissa);
  return std::ldexp(static_cast<float>(mantissa + (1 << kMantissa)), exponent - 1 + kMinExponent - kMantissa);
}

}  // namespace

f8e4m3::f8e4m3(float value) : bits(round_to_fp8<3, -6>(value, kLargest)) {}
f8e5m2::f8e5m2(float value) : bits(round_to_fp8<2, -14>(value, kLargest)) {}

f8e4m3::operator float() const {
  const float magnitude = (bits & 0x7f) == 0x7f ? std::nanf("") : fp8_magnitude<3, -6>(bits);
  return bits & 0x80 ? -magnitude : magnitude;
}

f8e5m2::operator float() const {
  float magnitude = fp8_magnitude<2, -14>(bits);
  if ((bits & 0x7f) == 0x7c) magnitude = HUGE_VALF;
  if ((bits & 0x7f) > 0x7c) magnitude = std::nanf("");
  return bits & 0x80 ? -magnitude : magnitude;
}

namespace {

template <class From, class To>
void convert_loop(const void* source, void* destination, size_t count) {
  const char* from = static_cast<const char*>(source);  // of a file: nothing says that it is aligned
  To* to = static_cast<To*>(destination);
  for (size_t i = 0; i < count; ++i, from += sizeof(From)) {
    From value;
    std::memcpy(&value, from, sizeof value);
    if constexpr (std::is_same_v<From, To>) {
      to[i] = value;
    } else {
      to[i] = static_cast<To>(static_cast<float>(value));
    }
  }
}

template <class From>
void convert_from(const void* source, DType to, void* destination, size_t count) {
  switch (to) {
    case DType::f32:
      return convert_loop<From, float>(source, destination, count);
    case DType::bf16:
      return convert_loop<From, bf16>(source, destination, count);
    case DType::f16:
      return convert_loop<From, f16>(source, destination, count);
    case DType::f64:
      return convert_loop<From, double>(source, destination, count);
    case DType::f8e4m3:
      return convert_loop<From, f8e4m3>(source, destination, count);
    case DType::f8e5m2:
      return convert_loop<From, f8e5m2>(source, destination, count);
    case DType::u8:  // codes
      return convert_loop<From, uint8_t>(source, destination, count);
    default:
      fail("cannot convert to number format {}", dtype_name(to));
  }
}

}  // namespace

void convert_elements(DType from, const void* source, DType to, void* destination, size_t count) {
  if (count == 0) return;  // then either may be null
  if (from == to) {
    std::memcpy(destination, source, count * dtype_bytes(from));
    return;
  }
  switch (from) {
    case DType::f32:
      return convert_from<float>(source, to, destination, count);
    case DType::bf16:
      return convert_from<bf16>(source, to, destination, count);
    case DType::f16:
      return convert_from<f16>(source, to, destination, count);
    case DType::f64:
      return convert_from<double>(source, to, destination, count);
    case DType::f8e4m3:
      return convert_from<f8e4m3>(source, to, destination, count);
    case DType::f8e5m2:
      return convert_from<f8e5m2>(source, to, destination, count);
    case DType::u8:
      return convert_from<uint8_t>(source, to, destination, count);
    default:
      fail("cannot convert from number format {}", dtype_name(from));
  }
}

}  // namespace sinter::base
