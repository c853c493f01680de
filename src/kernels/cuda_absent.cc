// Built instead of kernels/cuda when CUDA is not.
#include "kernels/table.h"

namespace sinter::kernels {

const KernelTable* cuda_table() { return nullptr; }

}  // namespace sinter::kernels
