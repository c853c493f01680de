// A plain (not gated) MLP as one operation, so that a backend may do the activation inside its products.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// y = act(x Wup^T + bup) Wdown^T + bdown: x (R, C) -> y (R, C). Biases may be null.
struct MlpWeights {
  Parameter& up;         // (F, C)
  Parameter* up_bias;    // (F)
  Parameter& down;       // (C, F)
  Parameter* down_bias;  // (C)
};
Variable plain_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind);

}  // namespace sinter::ops
