// Numbers from the block formats of base/weight_format.h.
#pragma once
#include <cstdint>

#include "base/weight_format.h"

namespace sinter::base {

// `count` numbers, whole blocks, from blocks at `source`. `scales`: one f32 per block, for formats that keep them
// apart. Throws Error for a format that cannot be decoded.
void dequantize_blocks(WeightFormat format, const void* source, const float* scales, float* destination, int64_t count);

}  // namespace sinter::base
