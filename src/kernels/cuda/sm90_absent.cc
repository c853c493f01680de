// Built instead of the files *_sm90.cu when CUTLASS is not found or sm_90a is not built for: products with activations
// go in parts.
#include "base/error.h"
#include "kernels/cuda/fused_matmul.h"

namespace sinter::kernels::cuda {

bool sm90_takes(const Stream&, const FusedMatmulArgs&) { return false; }
void sm90_gelu_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }
void sm90_gelu_slope_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }

}  // namespace sinter::kernels::cuda
