#include "kernels/cpu/attention/attention.h"

namespace sinter::kernels::cpu {

const PairKernel* avx512_bf16_pairs() { return nullptr; }
const PairKernel* amx_pairs() { return nullptr; }

}  // namespace sinter::kernels::cpu
