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
};

}  // namespace sinter::kernels
