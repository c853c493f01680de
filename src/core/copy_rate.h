// How fast host memory reaches a device: what loading weights is held against.
#pragma once
#include "core/device.h"

namespace sinter::core {

// Bytes a second of one large copy from pinned host memory, the best of a few. 0 where there is nothing to copy to.
double host_copy_rate(Device device);

// Implemented in core/cuda/copy_rate.cc, or as absent in core/cuda_absent.cc.
double cuda_host_copy_rate(int index);

}  // namespace sinter::core
