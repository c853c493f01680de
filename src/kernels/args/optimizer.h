// Arguments of the optimizers and of what decides a step.
#pragma once
#include "kernels/args/common.h"
#include "kernels/step_control.h"

namespace sinter::kernels {

// Optimizers work on flat ranges. control (2 or kControlSize) f32 on the device, places as in kernels/step_control.h:
// [0] multiplies every gradient, [1] 0 = skip the update.
struct AdamwArgs {
  Tensor master;  // (n) f32
  Tensor grad;    // (n) f32 or bf16
  Tensor m, v;    // (n) f32 or bf16
  Tensor copy;    // (n) compute format or empty: the rounded weight the next step multiplies by
  Tensor control;
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // counts from 1, for the bias corrections when control has 2 numbers; else they stand in it
  // Stochastic rounding of bf16 states: element i adds 16 random bits below the kept ones, then truncates; m takes the
  // high half of key.bits(i), v the low half.
  RandomKey key;
};
// AdamW whose states are codes of 8 bits: block i of 256 elements holds map[code] * scales[i]. States are decoded,
// updated in f32 and coded again: scales[i] is the block's largest magnitude, a code the nearest of the map's values.
struct Adamw8bitArgs {
  static constexpr int64_t kBlock = 256;
  Tensor master;              // (n) f32
  Tensor grad;                // (n) f32 or bf16
  Tensor m, v;                // (n) u8
  Tensor m_scales, v_scales;  // (ceil(n / kBlock)) f32
  Tensor m_map, v_map;        // (256) f32, rising
  Tensor copy;                // (n) compute format or empty
  Tensor control;             // as for adamw
  float lr = 0, beta1 = 0.9f, beta2 = 0.95f, eps = 1e-8f, weight_decay = 0;
  int64_t step = 1;  // as for adamw
};
struct SgdArgs {  // velocity = momentum * velocity + g; p -= lr * velocity (velocity empty: plain)
  Tensor master, grad, velocity, copy, control;
  float lr = 0, momentum = 0, weight_decay = 0;
};
// Muon before its iterations: b = mu b + (1 - mu) g, d = (1 - mu) g + mu b for g = control[0] grad.
struct MuonMomentumArgs {
  Tensor grad;       // (n) f32 or bf16
  Tensor momentum;   // (n) f32, or bf16 rounded like m of adamw
  Tensor direction;  // (n) f32 or bf16 out: d
  Tensor control;
  float mu = 0.95f;
  RandomKey key;
};
struct NormalizeArgs {  // every row divided by (its norm + eps), in place
  Tensor x;             // (R, n) f32 or bf16
  float eps = 1e-7f;
};
struct SumArgs {  // total = sum of x, added in f64 in an order fixed by n and rounded once
  Tensor x;       // (n) f32
  Tensor total;   // (1) f32
};
struct SumSquaresArgs {  // ADDS sum x^2 into total, by partial sums in an order fixed by n
  Tensor x;              // (n) f32 or bf16
  Tensor total;          // (1) f32
};
// decide_step (kernels/step_control.h) where the numbers are.
struct StepControlArgs {
  StepRule rule;
  Tensor loss_sum;        // (1) f32: over the step's supervised tokens
  float loss_factor = 1;  // 1 / their number
  Tensor norm_squared;    // (1) f32: of the gradient of the scaled mean loss
  Tensor state;           // (step_state_size(rule.window)) f32
  Tensor control;         // (kControlSize) f32 out
  Tensor record;          // (kRecordSize) f32: the first kRecordOwn are written
};

}  // namespace sinter::kernels
