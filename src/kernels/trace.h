// Whether the kernels of a device note when each call begins and ends (SINTER_TRACE, docs/cuda.md).
#pragma once
#include "core/device.h"

namespace sinter::kernels {

// While they do, calls must be made one by one: nothing may be captured and replayed as a whole.
bool is_tracing(core::Device device);

}  // namespace sinter::kernels
