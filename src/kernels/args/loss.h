// Arguments of the cross entropy, from logits or from the input of the head.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// Softmax cross entropy of each row; when write_gradient, logits become (softmax - onehot) * scale in place.
struct CrossEntropyArgs {
  static constexpr int64_t kMostApart = 64;
  Tensor logits;   // (R, V) compute format or f32
  Tensor targets;  // (R) i32; -1 = no loss, zero gradient
  Tensor losses;   // (R) f32: 0 where not supervised
  Tensor scale;    // (1) f32: gradient of the total loss with respect to a row's loss
  bool write_gradient = false;
  // (R, W) as logits, or empty: columns V to V + W, at most kMostApart, of logits that are kept in two pieces.
  Tensor last_logits;
  Tensor weights;  // (R) f32 or empty: multiplies each row's loss, and so its gradient
};

// A head and its loss: the cross entropy of logits = x weight^T, and with dx their gradients. Logits exist for as many
// rows at a time as `logits` holds.
struct LinearCrossEntropyArgs {
  Tensor x;                 // (R, C) compute format
  WeightView weight;        // (V, C) in the format of x
  Tensor targets;           // (R) i32; -1 = no loss, zero gradient
  Tensor losses;            // (R) f32 out: 0 where not supervised
  Tensor scale;             // (1) f32: gradient of the total loss with respect to a row's loss
  Tensor logits;            // (rows, V) in the format of x: scratch memory, in whatever order
  Tensor dx;                // (R, C) in the format of x out, or empty
  Tensor dweight;           // (V, C) f32, or empty; only with dx
  bool accumulate = false;  // ADDS to dweight
  Tensor dweight_squares;   // (1) f32 or empty: as c_squares of the product that writes dweight
  Tensor weights;           // (R) f32 or empty: multiplies each row's loss, and so its gradient
};

// Cross entropy over a vocabulary that P ranks share: each finds the terms of its columns [first, first + V), all
// gather them, and each turns its logits into their gradient by the loss of the whole row.
struct SoftmaxTermsArgs {
  static constexpr int64_t kTerms = 3;  // largest logit, sum of exp(logit - largest), the target's logit (0: not here)
  Tensor logits;                        // (R, V) compute format or f32
  Tensor targets;                       // (R) i32 of the whole vocabulary; -1 = no loss
  int64_t first = 0;
  Tensor terms;  // (R, kTerms) f32 out
};
struct SoftmaxLossArgs {
  Tensor terms;    // (P, R, kTerms) f32: of all ranks, in their order
  Tensor targets;  // (R) i32
  Tensor lse;      // (R) f32 out: log of the sum of exp over the whole row
  Tensor losses;   // (R) f32 out: 0 where not supervised
  Tensor weights;  // (R) f32 or empty: multiplies each row's loss
};
struct SoftmaxGradientArgs {  // logits become (softmax - onehot) * scale in place
  Tensor logits;              // (R, V)
  Tensor targets;             // (R) i32; -1: zeros
  int64_t first = 0;
  Tensor lse;      // (R) f32
  Tensor scale;    // (1) f32
  Tensor weights;  // (R) f32 or empty: multiplies each row's gradient
};

}  // namespace sinter::kernels
