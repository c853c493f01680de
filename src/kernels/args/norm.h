// Arguments of the norms over rows and over heads.
#pragma once
#include "kernels/args/common.h"
#include "spec/model_spec.h"

namespace sinter::kernels {

struct NormForwardArgs {  // s = x + residual, rounded to its format; y = norm(s) * weight (+ bias)
  spec::NormKind kind = spec::NormKind::rms;
  float eps = 1e-5f;
  Tensor x;         // (R, C)
  Tensor residual;  // (R, C) or empty
  Tensor weight;    // (C) f32
  Tensor bias;      // (C) f32 or empty
  Tensor sum;       // (R, C): s, written when residual is given; may alias x or residual
  Tensor y;         // (R, C)
  Tensor mean;      // (R) f32, layer norm only
  Tensor rstd;      // (R) f32
};
struct NormBackwardArgs {  // ds = d(norm)/ds dy (+ dsum); ADDS into dweight, dbias
  spec::NormKind kind = spec::NormKind::rms;
  Tensor dy;       // (R, C)
  Tensor dsum;     // (R, C) or empty: gradient that reaches s past the norm
  Tensor s;        // (R, C): what was normalised
  Tensor weight;   // (C) f32
  Tensor mean;     // (R) f32, layer norm only
  Tensor rstd;     // (R) f32
  Tensor ds;       // (R, C); may alias dy or dsum
  Tensor dweight;  // (C) f32, or empty: frozen
  Tensor dbias;    // (C) f32 or empty
  Tensor ds_sums;  // (C) f32 or empty: ADDS the sums of ds over the rows, the gradient of a bias added into s
};

// RMSNorm over each head of Q and K in a packed QKV row; V is copied.
struct HeadNormForwardArgs {
  float eps = 1e-6f;
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor qkv;       // (T, W)
  Tensor q_weight;  // (D) f32
  Tensor k_weight;  // (D) f32
  Tensor out;       // (T, W)
  Tensor rstd;      // (T, H + K) f32
};
struct HeadNormBackwardArgs {  // ADDS into dq_weight, dk_weight
  int64_t num_heads = 0, num_kv_heads = 0, head_dim = 0;
  Tensor dout;       // (T, W)
  Tensor qkv;        // (T, W): the forward's input
  Tensor q_weight;   // (D) f32
  Tensor k_weight;   // (D) f32
  Tensor rstd;       // (T, H + K) f32
  Tensor dqkv;       // (T, W); may alias dout
  Tensor dq_weight;  // (D) f32, or empty: frozen
  Tensor dk_weight;  // (D) f32, or empty: frozen
};

}  // namespace sinter::kernels
