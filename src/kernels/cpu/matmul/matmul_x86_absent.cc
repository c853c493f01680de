#include "kernels/cpu/matmul/matmul_kernel.h"

namespace sinter::kernels::cpu {

const MatmulKernel* avx2_f32_kernel() { return nullptr; }
const MatmulKernel* avx512_f32_kernel() { return nullptr; }
const MatmulKernel* avx512_bf16_kernel() { return nullptr; }
const MatmulKernel* amx_bf16_kernel() { return nullptr; }
const MatmulKernel* amx_f32_kernel() { return nullptr; }

}  // namespace sinter::kernels::cpu
