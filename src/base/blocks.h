// Numbers from the block formats of base/weight_format.h.
#pragma once
#include <cstdint>

#include "base/weight_format.h"

namespace sinter::base {

// `count` numbers, whole blocks, from blocks at `source`. `scales`: one f32 per block, for formats that keep them
// apart. Throws Error for a format that cannot be decoded.
void dequantize_blocks(WeightFormat format, const void* source, const float* scales, float* destination, int64_t count);

// The scales of one row in a format that keeps them apart.
struct RowScales {
  const float* scales = nullptr;         // of the row's groups
  const float* zeros = nullptr;          // zero points of int4 and int8; null: 8 and 128
  const int32_t* permutation = nullptr;  // the group of each column; null: column / group
  int64_t group = 0;                     // columns
};
// A row of `count` numbers from its codes.
void dequantize_row(WeightFormat format, const void* codes, const RowScales& scales, float* destination, int64_t count);

}  // namespace sinter::base
