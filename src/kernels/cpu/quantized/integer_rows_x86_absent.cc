#include "kernels/cpu/quantized/integer_product.h"

namespace sinter::kernels::cpu {

IntegerRowKernel avx2_integer_kernel(base::WeightFormat) { return nullptr; }
IntegerRowKernel avx512_vnni_integer_kernel(base::WeightFormat) { return nullptr; }
IntegerStripKernel avx512_vnni_strip_kernel(base::WeightFormat) { return {}; }

}  // namespace sinter::kernels::cpu
