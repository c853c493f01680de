#include "kernels/cpu/quantized/integer_rows-inl.h"
#include "kernels/cpu/quantized/integer_vnni.h"

namespace sinter::kernels::cpu {

IntegerRowKernel avx512_vnni_integer_kernel(base::WeightFormat format) { return IntegerRows<Avx512Vnni>::find(format); }

}  // namespace sinter::kernels::cpu
