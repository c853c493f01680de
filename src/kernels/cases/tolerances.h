// The one table of how far a kernel's results may be from the reference's, by what a result is and by the format the
// kernel computes in. Every backend is held to it.
#pragma once
#include "base/error.h"
#include "core/tensor.h"

namespace sinter::kernels::cases {

// What a compared tensor is.
enum class Result {
  rounded,             // an f32 expression, rounded once
  rounded_weights,     // the same of weights that one side rounds to the format before
  statistic,           // f32 of a row: means, probabilities, losses; sums of numbers as they are
  exact_sum,           // sums in f64, and what is decided from few numbers
  weight_gradient,     // f32 sums of products over rows
  rounded_sum,         // f32 sums of numbers that one side may round to the format before
  product,             // sums over K, rounded once
  fused_product,       // with an epilogue whose input one side may round before
  attention,           // probabilities are rounded before they multiply
  decoding,            // of few queries over pages
  fp8_cache,           // of fp8 or int8
  attention_gradient,  // of probabilities and gradients that are rounded
  log_sum_exp,
  head_loss,      // of logits that one side may round before
  head_gradient,  // and their gradients
  state,          // of an optimizer: stochastic rounding may fall to the other side, one step of bf16, rarely
  fp8,            // values that differ in f32's last bit may fall to the other side
  fp8_gradient,
  fp8_product,
  fast_fp8_product,  // with the tensor cores' short sums
};

// A tensor is right when ||found - expected|| <= norm * ||expected|| and, where the target holds elements to theirs
// (case.h), every |found - expected| <= element * |expected| + rms * (the root mean square of all expected).
struct Limits {
  double norm = 0, element = 0, rms = 0;
};
constexpr Limits both(double norm, double element) { return {norm, element, element}; }

// `format`: what the kernel computes in, or the tensor's own where the limit does not depend on it.
inline Limits limits_of(Result result, base::DType format) {
  struct Row {
    Result result;
    Limits f32, bf16 = {}, f16 = {};
  };
  static constexpr Row kRows[] = {
      {Result::rounded, both(1e-5, 1e-5), both(4e-3, 1.2e-2), both(6e-4, 1.5e-3)},
      {Result::rounded_weights, both(1e-5, 1e-5), both(6e-3, 1.6e-2), both(9e-4, 2e-3)},
      {Result::statistic, both(1e-5, 1e-5)},
      {Result::exact_sum, both(1e-6, 1e-6)},
      {Result::weight_gradient, both(2e-5, 1e-5)},
      {Result::rounded_sum, both(2e-5, 1e-5), both(4e-3, 1.2e-2), both(6e-4, 1.5e-3)},
      {Result::product, {2e-5, 1e-6, 1.5e-5}, {4e-3, 0x1p-7, 1e-5}, {6e-4, 0x1p-10, 1e-5}},
      {Result::fused_product, both(2e-5, 1e-5), both(8e-3, 1.2e-2), both(1.2e-3, 1.5e-3)},
      {Result::attention, both(2e-5, 1e-5), both(8e-3, 1.2e-2), both(2e-3, 1.5e-3)},
      {Result::decoding, both(2e-5, 1e-5), both(8e-3, 1.2e-2), both(1.2e-3, 1.5e-3)},
      {Result::fp8_cache, both(2e-5, 1e-5), both(1.2e-2, 1.2e-2), both(1.8e-3, 1.5e-3)},
      {Result::attention_gradient, both(5e-5, 3e-5), both(1.6e-2, 4e-2), both(4e-3, 4e-3)},
      {Result::log_sum_exp, both(1e-5, 1e-5), both(1e-4, 1e-4), both(1e-4, 1e-4)},
      {Result::head_loss, both(1e-5, 1e-5), both(4e-3, 1.2e-2), both(6e-4, 1.5e-3)},
      {Result::head_gradient, both(5e-5, 1e-5), both(1.2e-2, 2e-2), both(1.8e-3, 4e-3)},
      {Result::state, both(1e-5, 1e-5), both(1e-3, 1.2e-2)},
      {Result::fp8, both(5e-3, 0.2), both(5e-3, 0.2), both(5e-3, 0.2)},
      {Result::fp8_gradient, both(1e-2, 0.3), both(1e-2, 0.3), both(1e-2, 0.3)},
      {Result::fp8_product, both(1e-3, 1e-3), both(5e-3, 1.2e-2), both(5e-3, 5e-3)},
      {Result::fast_fp8_product, both(3e-3, 3e-3), both(5e-3, 1.2e-2), both(5e-3, 5e-3)},
  };
  for (const Row& row : kRows) {
    if (row.result != result) continue;
    const Limits limits = format == base::DType::bf16 ? row.bf16 : format == base::DType::f16 ? row.f16 : row.f32;
    SINTER_CHECK(limits.norm > 0, "[cases] no tolerance for this result in {}", base::dtype_name(format));
    return limits;
  }
  base::fail("[cases] a result without a row in the table of tolerances");
}

}  // namespace sinter::kernels::cases
