// y = x W^T + b (+ residual), with its gradients. W is (N, K), or a stack of experts (E, N, K) with rows of x sorted by
// expert.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// x (R, K) -> y (R, N) in the format of x. bias may be null. residual (R, N) may be empty, and must be where
// adds_residual() says no.
Variable linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                const Variable& residual = {});
// linear(), then rope() (attention.h) of the result: where the backend can, in one product. As there, the rotation's
// gradient is a part of attention()'s.
Variable rotated_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                        const Tensor& cos_sin, const spec::ModelSpec& spec);
// Whether linear() with this weight can add a residual while it writes y: not in fp8, not with adapters.
bool adds_residual(const Context& context, const Parameter& weight, int64_t rows);
// group_offsets (E + 1) i32 on the device.
Variable expert_linear(const Context& context, const Variable& x, Parameter& weight, const Tensor& group_offsets);

void linear_forward(const Context& context, const Tensor& x, const Parameter& weight, const Parameter* bias,
                    const Tensor& group_offsets, const Tensor& y, const Tensor& residual = {});
// Writes dx (R, K) = dy W; nothing where dx is empty.
void linear_backward_input(const Context& context, const Tensor& dy, const Parameter& weight,
                           const Tensor& group_offsets, const Tensor& dx);
// Writes dx (R, K); adds into the parameters' gradients (or sets them, when this is the step's first).
void linear_backward(const Context& context, const Tensor& dy, const Tensor& x, Parameter& weight, Parameter* bias,
                     const Tensor& group_offsets, const Tensor& dx);

}  // namespace sinter::ops
