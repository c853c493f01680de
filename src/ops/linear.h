// y = x W^T + b, with its gradients. W is (N, K), or a stack of experts (E, N, K) with rows of x sorted by expert.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// x (R, K) -> y (R, N) in the format of x. bias may be null.
Variable linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias);
// group_offsets (E + 1) i32 on the device.
Variable expert_linear(const Context& context, const Variable& x, Parameter& weight, const Tensor& group_offsets);

void linear_forward(const Context& context, const Tensor& x, const Parameter& weight, const Parameter* bias,
                    const Tensor& group_offsets, const Tensor& y);
// Writes dx (R, K); adds into the parameters' gradients (or sets them, when this is the step's first).
void linear_backward(const Context& context, const Tensor& dy, const Tensor& x, Parameter& weight, Parameter* bias,
                     const Tensor& group_offsets, const Tensor& dx);

}  // namespace sinter::ops
