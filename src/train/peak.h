// The machine's own ceiling for training speed: matrix products per second, measured in a moment at the start.
#pragma once
#include "core/device.h"
#include "core/tensor.h"

namespace sinter::train {

// Best rate of a few square products in this format, in FLOP/s; takes a few tenths of a second the first time. Not
// thread-safe.
double measure_matmul_flops(core::Device device, core::DType dtype);

}  // namespace sinter::train
