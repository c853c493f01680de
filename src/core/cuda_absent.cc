// Built instead of core/cuda when CUDA is not: there is no such device.
#include "core/device.h"

namespace sinter::core {

bool has_cuda_backend() { return false; }
DeviceRuntime* cuda_runtime(int) { return nullptr; }

}  // namespace sinter::core
