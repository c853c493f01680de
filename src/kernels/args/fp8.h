// Arguments of the kernels that make fp8 matrices.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// How a tensor is scaled into fp8: stored = round(value * scale), value ~ stored * inverse. A row of kSize f32 on the
// device, so that scales never pass through the host.
struct Fp8Scaling {
  static constexpr int64_t kInverse = 0;
  static constexpr int64_t kScale = 1;    // a power of two
  static constexpr int64_t kLargest = 2;  // largest |value| since the last fp8_rescale; NaN is above all
  static constexpr int64_t kLimit = 3;    // what |value * scale| should not exceed
  static constexpr int64_t kHistory = 4;  // largest |value| of the last steps, newest first
  static constexpr int64_t kHistorySteps = 16;
  static constexpr int64_t kSize = kHistory + kHistorySteps;
};
// Where a kernel leaves an fp8 matrix, in both orders: products read both factors along the axis they sum over.
struct Fp8Output {
  Tensor scaling;     // (kSize) f32: scale is read, largest grows to |value| where that is larger
  Tensor values;      // (R, C) f8e4m3 or f8e5m2, or empty
  Tensor transposed;  // (C, R) in the same format, or empty; with neither, only `largest` is found
};
struct Fp8QuantizeArgs {
  Tensor x;  // (R, C) compute format, R and C multiples of 16
  Fp8Output y;
};
struct Fp8SwigluForwardArgs {  // y = silu(gate) * up for x = [gate | up]
  Tensor x;                    // (R, 2F) compute format, R and F multiples of 16
  Fp8Output y;                 // (R, F)
};
struct Fp8SwigluBackwardArgs {
  Tensor dy;     // (R, F) compute format
  Tensor x;      // (R, 2F)
  Fp8Output dx;  // (R, 2F)
};
// Ends a step for each row: a `largest` that is finite and not 0 joins the history; scale becomes the largest power of
// two that keeps the largest of the history within the limit (1 while the history is empty); largest becomes 0.
struct Fp8RescaleArgs {
  Tensor scalings;  // (S, kSize) f32
};

}  // namespace sinter::kernels
