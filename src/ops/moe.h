// A mixture-of-experts layer: route, sort tokens by expert, grouped products, combine.
#pragma once
#include <functional>

#include "ops/context.h"

namespace sinter::ops {

struct MoeWeights {
  Parameter& router;  // (E, C)
  Parameter& up;      // (E, 2F, C)
  Parameter& down;    // (E, C, F)
};

// The load-balancing loss's places: `loss` (1) f32 gathers the layers' losses, `scale` (1) f32 is the gradient of the
// total with respect to one layer's loss. Both empty: no such loss.
struct BalanceLoss {
  Tensor loss, scale;
  // Where ranks share the tokens of a micro-batch: sums i32 counts over them. Each then adds its part of the loss.
  std::function<void(const Tensor& counts)> sum_counts = {};
  float share = 1;  // of this rank in those tokens
};

// The experts of a layer: rows (R, C) sorted by expert as group_offsets (E + 1) i32 says -> (R, C).
using Experts = std::function<Variable(const Context& context, const Variable& rows, const Tensor& group_offsets)>;
// Experts that are all here.
Variable expert_mlp(const Context& context, const Variable& rows, const Tensor& group_offsets, Parameter& up,
                    Parameter& down, const spec::ModelSpec& spec);

// x (T, C) -> (T, C). The router reads `unrounded`, x before its rounding to a 16-bit format, (T, C) f32; empty: x
// itself. `on_logits` (may be empty) sees the router's logits (T, E) f32 before experts are chosen by them, and may
// change them. `experts`: where others than this rank hold them; empty: all are here.
Variable moe(const Context& context, const Variable& x, const Tensor& unrounded, const MoeWeights& weights,
             const spec::ModelSpec& spec, const BalanceLoss& balance,
             const std::function<void(const Tensor& logits)>& on_logits = {}, const Experts& experts = {});

}  // namespace sinter::ops
