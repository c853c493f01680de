// Formats of the KV cache beside the compute format, as one row: the numbers of one token and head.
//
//   fp8    DType f8e4m3 (also f8e5m2): codes; one scale for each head stands apart (KvLayer)
//   int8   DType i8: codes, then one f16 scale for the row: largest / 127
//   q8_0   DType u8: GGUF's blocks of 32 numbers, an f16 scale and 32 codes each
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "base/dtype.h"

namespace sinter::core {

// "auto" (the compute format, given as f32), "fp8", "int8", "q8_0". Throws UsageError for others.
base::DType parse_kv_format(std::string_view name);
std::string kv_format_name(base::DType format);

// Whether a row holds its own scales: int8 and q8_0.
constexpr bool has_row_scales(base::DType format) { return format == base::DType::i8 || format == base::DType::u8; }
// Elements of `format` that a row of `head_dim` numbers takes. Throws Error where q8_0's blocks do not fit.
int64_t kv_row_elements(base::DType format, int64_t head_dim);

// `scale` is for fp8 alone. Every format, plain ones too.
void encode_kv_row(base::DType format, const float* x, int64_t head_dim, float scale, void* row);
// Number i of a row that holds its own scales.
float kv_number(base::DType format, const void* row, int64_t head_dim, int64_t i);
void decode_kv_row(base::DType format, const void* row, int64_t head_dim, float scale, float* x);

}  // namespace sinter::core
