#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {

IntegerRowKernel avx2_integer_kernel(base::WeightFormat) { return nullptr; }
IntegerRowKernel avx512_vnni_integer_kernel(base::WeightFormat) { return nullptr; }
IntegerPairKernel avx512_vnni_pair_kernel(base::WeightFormat) { return nullptr; }

}  // namespace sinter::kernels::cpu
