// The head and its cross entropy in one: logits exist for a chunk of rows at a time, and with a tape the chunk's
// gradient is taken on the spot, so the logits of a whole batch are never held.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// x (T, C), weight (V, C), targets (T) i32 with -1 = not supervised. losses (T) f32 out: each row's loss.
// `scale` (1) f32: gradient of the total with respect to one row's loss (1 over the count of supervised tokens of the
// whole step, times the loss scale); read only when recording. `weights` (T) f32 or empty: multiplies each row's loss
// and gradient.
void linear_cross_entropy(const Context& context, const Variable& x, Parameter& weight, const Tensor& targets,
                          const Tensor& scale, const Tensor& losses, const Tensor& weights = {});

}  // namespace sinter::ops
