// A softmax over logits = x weight^T that are never stored. With c the logit of a row's target t and
//   e_j = exp(min(logit_j - c, log(2^80))) for j != t, e_t = 0;   S = sum of e_j
// the row's loss is log(1 + S), and its logits' gradients are scale / (1 + S) * e_j and, at the target,
// -scale S / (1 + S). No sum can overflow, and where the target is nearly certain nothing cancels. The limit is met
// only by a loss above 55 nats: it is then reported as 55 to 55 + log(V), and its gradient shared out among all logits
// at the limit. A row without a target has c = infinity: all its terms are 0.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cuda {

inline constexpr float kMostPower = 80.0f;  // of 2, in e_j

// The terms e of some rows, in the format of x, and their sums by tiles of columns.
struct SoftmaxTerms {
  Tensor x;        // (R, C)
  Tensor weight;   // (V, C)
  Tensor targets;  // (R) i32
  Tensor shifts;   // (R) f32: c in base 2
  Tensor terms;    // (R, V) out
  Tensor sums;     // (tiles, R) f32 out, of the terms as they are stored
};

// shifts (R) from x, weight and targets.
void target_shifts(Stream&, const SoftmaxTerms&);

// From the sums: losses (R), and with gradients the factors and x times its row's factor.
struct SoftmaxRows {
  Tensor sums;            // (tiles, R) f32
  Tensor losses;          // (R) f32 out
  Tensor scale;           // (1) f32
  Tensor factors;         // (R) f32 out: scale / (1 + S)
  Tensor target_factors;  // (R) f32 out: -scale S / (1 + S)
  Tensor x;               // (R, C)
  Tensor scaled_x;        // (R, C) out, or empty
  Tensor weights;         // (R) f32 or empty: multiplies each row's loss
};
void finish_softmax(Stream&, const SoftmaxRows&);

// dx = factors * product + target_factors * weight[targets].
struct SoftmaxInputGradient {
  Tensor product;                  // (R, C) f32: terms weight
  Tensor weight;                   // (V, C)
  Tensor targets;                  // (R) i32
  Tensor factors, target_factors;  // (R) f32
  Tensor dx;                       // (R, C) out
};
void finish_input_gradient(Stream&, const SoftmaxInputGradient&);

// table[indices[i]] += weights[i] * x[i], in the order of i; indices outside the table are left out: embedding.cu.
// x (R, C), table (V, C) f32, weights (R) f32.
void add_weighted_rows(Stream&, const Tensor& indices, const Tensor& x, const Tensor& weights, const Tensor& table);

}  // namespace sinter::kernels::cuda
