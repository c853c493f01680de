// Number formats: the DType tag, bf16 and f16 storage types, and their conversions (round to nearest even).
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace sinter::base {

enum class DType : uint8_t { f32, bf16, f16, f64, i8, u8, i16, u16, i32, u32, i64, u64, boolean, f8e4m3, f8e5m2 };

// Bytes of one element.
size_t dtype_bytes(DType dtype);
// "f32", "bf16", ...
std::string_view dtype_name(DType dtype);
// safetensors' spelling: "F32", "BF16", "F8_E4M3", ...
std::string_view dtype_safetensors_name(DType dtype);
// Accepts our names ("bf16"), safetensors' ("BF16") and torch's ("bfloat16"). Throws Error naming the text.
DType parse_dtype(std::string_view text);
bool is_floating(DType dtype);  // f32, bf16, f16, f64: formats that stand without a scale
bool is_fp8(DType dtype);

// A bfloat16 in memory; arithmetic happens in float.
struct bf16 {
  uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x40u);  // keep NaN a (quiet) NaN
    } else {
      bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
    }
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// An IEEE half in memory.
struct f16 {
  uint16_t bits = 0;
  f16() = default;
  explicit f16(float value);
  explicit operator float() const;
};

// fp8 in memory: e4m3 (no infinity, up to 448) and e5m2 (up to 57344). Rounding saturates: what is larger, infinities
// too, becomes the largest number. NaN becomes 0x7f.
struct f8e4m3 {
  static constexpr float kLargest = 448.0f;
  uint8_t bits = 0;
  f8e4m3() = default;
  explicit f8e4m3(float value);
  explicit operator float() const;
};
struct f8e5m2 {
  static constexpr float kLargest = 57344.0f;
  uint8_t bits = 0;
  f8e5m2() = default;
  explicit f8e5m2(float value);
  explicit operator float() const;
};

static_assert(sizeof(bf16) == 2 && sizeof(f16) == 2 && sizeof(f8e4m3) == 1 && sizeof(f8e5m2) == 1);

// Converts `count` elements between any two floating formats, fp8 among them (without a scale). Source and destination
// must not overlap.
void convert_elements(DType from, const void* source, DType to, void* destination, size_t count);

template <class T>
inline constexpr DType dtype_of = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<bf16> = DType::bf16;
template <>
inline constexpr DType dtype_of<f16> = DType::f16;
template <>
inline constexpr DType dtype_of<f8e4m3> = DType::f8e4m3;
template <>
inline constexpr DType dtype_of<f8e5m2> = DType::f8e5m2;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<uint8_t> = DType::u8;
template <>
inline constexpr DType dtype_of<uint16_t> = DType::u16;
template <>
inline constexpr DType dtype_of<uint32_t> = DType::u32;

}  // namespace sinter::base
