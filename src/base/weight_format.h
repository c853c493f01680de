// The one table of weight formats: plain numbers, GGUF's blocks, and the packed formats of Hugging Face folders.
//
// A format with blocks stores each row of a weight as whole blocks of `block_elements` numbers along the columns, each
// in `block_bytes` bytes, scales included, unless `scales` says that these stand in a tensor of their own.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

namespace sinter::base {

enum class WeightFormat : uint8_t {
  plain,  // f32, bf16 or f16: the tensor's DType says which
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q8_0,
  q2_k,
  q3_k,
  q4_k,
  q5_k,
  q6_k,
  iq4_nl,
  iq4_xs,
  mxfp4,
  nvfp4,
  q1_0,
  q2_0,
  tq1_0,
  tq2_0,
  iq1_s,
  iq1_m,
  iq2_xxs,
  iq2_xs,
  iq2_s,
  iq3_xxs,
  iq3_s,
  nf4,  // NormalFloat: 4-bit codes (the first of a pair in the high half), an f32 scale per 64 numbers apart
  fp4,  // bitsandbytes' 4-bit float, laid out as nf4
  // Codes of folders with scales of any group (core/weight_view.h): (code - zero point) * scale.
  int4,      // 4-bit codes, the first of a pair in the low half
  int8,      // 8-bit codes
  fp8_e4m3,  // the number itself times its scale, no zero point
};

// Where the scales of a format stand.
enum class WeightScales : uint8_t {
  none,       // plain numbers
  in_blocks,  // in the block itself
  apart,      // one f32 for each block, or group of columns, in a tensor beside the codes
};

struct WeightFormatInfo {
  WeightFormat format;
  std::string_view name;  // "q4_k"
  int ggml_type;          // number in a GGUF file; -1: not a GGUF type
  int block_elements;
  int block_bytes;
  WeightScales scales;
  bool can_decode;  // dequantize_blocks() knows it
};

std::span<const WeightFormatInfo> weight_formats();
const WeightFormatInfo& info_of(WeightFormat format);
// Null: no such format.
const WeightFormatInfo* find_weight_format(std::string_view name);
const WeightFormatInfo* find_ggml_weight_format(int64_t ggml_type);

inline std::string_view name_of(WeightFormat format) { return info_of(format).name; }
// Bytes of so many numbers, whole blocks. Not for plain weights.
int64_t bytes_of(WeightFormat format, int64_t elements);

}  // namespace sinter::base
