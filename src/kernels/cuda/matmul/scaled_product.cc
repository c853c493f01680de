// Products of fp8 codes with scales for rows or groups of columns, by cuBLASLt.
#include "kernels/cuda/matmul/fp8_rows.h"
#include "kernels/cuda/matmul/fused_matmul.h"
#include "kernels/cuda/matmul/matmul_plan.h"

namespace sinter::kernels::cuda {

bool scaled_product(Stream& stream, const ScaledProduct& s) {
  const void* c = s.addend ? s.addend : s.d;
  const ProductKey key{.m = s.m,
                       .n = s.n,
                       .k = s.k,
                       .batch = 1,
                       .in_a = base::DType::f8e4m3,
                       .in_b = base::DType::f8e4m3,
                       .out = s.out,
                       .transpose_a = false,
                       .transpose_b = true,
                       .accumulate = s.addend != nullptr,
                       .has_bias = s.bias != nullptr,
                       .has_sums = false,
                       .has_gelu = false,
                       .has_gelu_gradient = false,
                       .is_fast = true,
                       .align_a = alignment_of(s.a),
                       .align_b = alignment_of(s.b),
                       .align_c = std::min(alignment_of(c), alignment_of(s.d)),
                       .c_stride = s.d_stride,
                       .scales = s.has_groups ? ProductScales::groups : ProductScales::rows};
  std::lock_guard lock(plans_mutex());
  const Pointers pointers{.first = s.b,
                          .second = s.a,
                          .bias = s.bias,
                          .aux = nullptr,
                          .first_scale = s.b_scales,
                          .second_scale = s.a_scales,
                          .c = c,
                          .d = s.d,
                          .alpha = s.alpha,
                          .beta = s.beta};
  Plan& plan = plan_for(key, pointers);
  if (plan.candidates.empty()) return false;
  if (!plan.is_measured && may_measure(stream)) {
    measure(stream, plan, pointers, static_cast<size_t>(s.m * s.d_stride) * base::dtype_bytes(s.out), {});
  }
  return run_first_that_runs(stream, plan, pointers) == CUBLAS_STATUS_SUCCESS;
}

}  // namespace sinter::kernels::cuda
