// Numbers to the block formats of base/weight_format.h: the other direction of base/blocks.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/weight_format.h"

namespace sinter::quant {

// Whether encode_row() knows the format.
bool can_encode(base::WeightFormat format);
// Names of those that it knows, for messages.
std::vector<std::string> encodable_names();

// One row of `count` numbers, whole blocks, into bytes_of(format, count) bytes. `importance` (count) or null: how much
// an error in each column matters, from a calibration text. q8_0, q4_0, q4_1, q5_0, q5_1 and mxfp4 without importance
// are rounded as ggml's reference does; the others search for the scales with the least weighted error.
// Throws base::Error for other formats, and for numbers that are not finite.
void encode_row(base::WeightFormat format, const float* x, const float* importance, int64_t count, uint8_t* out);

}  // namespace sinter::quant
