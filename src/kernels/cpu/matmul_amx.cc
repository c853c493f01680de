#include "kernels/cpu/matmul_kernel.h"
namespace sinter::kernels::cpu {
const MatmulKernel* amx_bf16_kernel() { return nullptr; }
}  // namespace sinter::kernels::cpu
