// Arguments of activations and dropout.
#pragma once
#include "kernels/args/common.h"
#include "spec/model_spec.h"

namespace sinter::kernels {

// y = act(gate) * up for x = [gate | up] (R, 2F) when gated, else y = act(x) for x (R, F).
struct ActivationForwardArgs {
  spec::Activation kind = spec::Activation::silu;
  bool gated = true;
  Tensor x;      // (R, 2F) or (R, F)
  Tensor y;      // (R, F); without a gate it may alias x
  Tensor slope;  // (R, F) or empty, without a gate: act'(x) in the format of y
};
struct ActivationBackwardArgs {
  spec::Activation kind = spec::Activation::silu;
  bool gated = true;
  Tensor dy;       // (R, F)
  Tensor x;        // (R, 2F) or (R, F); empty with slope
  Tensor dx;       // as x; may alias x, or dy without a gate
  Tensor dx_sums;  // (F) f32 or empty, without gate: ADDS the sums of dx over the rows, the gradient of a bias added
                   // into x
  Tensor slope;    // (R, F) or empty, without a gate: instead of x, dx = dy * slope
};

// y = x * mask / (1 - p); element i of the call is kept where key.uniform(first_index + i) >= p. y may alias x. Its own
// gradient.
struct DropoutArgs {
  float p = 0.0f;
  RandomKey key;
  uint64_t first_index = 0;
  Tensor x, y;
};

// Dropout of rows that are not neighbours in the step: element c of row r is number rows[r] * C + c.
struct RowDropoutArgs {
  float p = 0.0f;
  RandomKey key;
  Tensor rows;  // (R) i32
  Tensor x, y;  // (R, C); y may alias x
};

}  // namespace sinter::kernels
