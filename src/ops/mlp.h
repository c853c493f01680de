// A block's MLP as one operation, so that the activation may be done inside its products or where it is rounded.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// Biases may be null.
struct MlpWeights {
  Parameter& up;         // (F, C), or (2F, C) when gated
  Parameter* up_bias;    // (F)
  Parameter& down;       // (C, F)
  Parameter* down_bias;  // (C)
};
// y = act(x Wup^T + bup) Wdown^T + bdown (+ residual): x (R, C) -> y (R, C). residual as in linear(), by Wdown.
Variable plain_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                   const Variable& residual = {});
// y = (act(gate) * up) Wdown^T + bdown (+ residual) with [gate | up] = x Wup^T + bup.
Variable gated_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                   const Variable& residual = {});

}  // namespace sinter::ops
