// Built instead of kernels/cuda when CUDA is not.
#include "kernels/fused.h"

namespace sinter::kernels {

const KernelTable* cuda_table() { return nullptr; }
bool cuda_fused_matmul(Stream&, const FusedMatmulArgs&) { return false; }

}  // namespace sinter::kernels
