// Rows of a weight that is not plain as plain numbers on the host: what the CPU's and the reference's dequantize() and
// products are made of.
#pragma once
#include "core/weight_view.h"

namespace sinter::kernels {

// Row `row` of an expert as `columns()` numbers. Throws base::Error naming a format that cannot be read.
void read_weight_row(const core::WeightView& weight, int64_t expert, int64_t row, float* y);

}  // namespace sinter::kernels
