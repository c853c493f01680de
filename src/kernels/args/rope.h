// Arguments of the rotary position embedding.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// Angles of every token: angle[t][i] = positions[t] * inv_freq[sequence][i], in f32.
struct RopeTableArgs {
  Tensor positions;    // (T) i32
  Tensor sequence_of;  // (T) i32: row of inv_freq; unused when inv_freq has one row
  Tensor inv_freq;     // (1 or S, D/2) f32
  float scale = 1.0f;  // multiplies cos and sin (yarn)
  Tensor cos_sin;      // (T, D) f32: D/2 cosines, then D/2 sines
};
// Rotates the first `num_rotated` heads of each row in place: (a, b) = halves of a head -> (a c - b s, b c + a s).
struct RopeArgs {
  int64_t num_rotated = 0, head_dim = 0;
  Tensor x;              // (T, W) in place
  Tensor cos_sin;        // (T, D) f32
  bool inverse = false;  // the gradient: rotate back
};

}  // namespace sinter::kernels
