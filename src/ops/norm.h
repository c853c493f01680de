// RMSNorm and LayerNorm over the last axis, with the addition to the residual stream fused in.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

struct NormResult {
  Variable y;    // (R, C): normalised
  Variable sum;  // (R, C): x + residual, the stream that goes on; x itself when there is no residual
};

// residual may hold an empty tensor. weight and bias (null for RMSNorm) are read in f32.
NormResult norm(const Context& context, const Variable& x, const Variable& residual, Parameter& weight, Parameter* bias,
                spec::NormKind kind, float eps);

// The normalised rows unrounded: y (R, C) in f32 from x and residual in a 16-bit format. No backward: for decisions
// that should not hang on rounding (which experts a token goes to).
Tensor norm_in_f32(const Context& context, const Tensor& x, const Tensor& residual, const Parameter& weight,
                   const Parameter* bias, spec::NormKind kind, float eps);

// RMSNorm over each head of Q and K of packed rows (T, W).
Variable head_norm(const Context& context, const Variable& qkv, Parameter& q_weight, Parameter& k_weight,
                   const spec::ModelSpec& spec);

}  // namespace sinter::ops
