// Numbers to and from the block formats of base/weight_format.h.
#pragma once
#include <cstdint>

#include "base/weight_format.h"

namespace sinter::base {

// `count` numbers, whole blocks, from blocks at `source`. `scales`: one f32 per block, for formats that keep them apart.
// Throws Error for a format that cannot be decoded.
void dequantize_blocks(WeightFormat format, const void* source, const float* scales, float* destination, int64_t count);

// The blocks of `count` numbers (whole blocks of one row, NaN and infinities not allowed). `importance` (count) weighs the
// error of each number in the search for scales, or null. Formats that keep scales apart write them to `scales`.
// Throws Error for a format that cannot be written.
void quantize_blocks(WeightFormat format, const float* source, const float* importance, void* destination, float* scales,
                     int64_t count);
bool can_quantize(WeightFormat format);

}  // namespace sinter::base
