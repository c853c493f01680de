// Products with weights that are not plain (kernels/table.h: matmul).
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cpu {

void quantized_matmul(Stream& stream, const MatmulArgs& args);

}  // namespace sinter::kernels::cpu
