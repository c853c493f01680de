#pragma once

namespace sinter::core {

// Whether kernels of this build run on the current GPU: it was built for certain architectures.
bool has_kernels_for_current_gpu();

}  // namespace sinter::core
