// Arguments of matrix products: plain, grouped by expert, and fused with an activation or a rotation.
#pragma once
#include "kernels/args/common.h"
#include "kernels/args/rope.h"
#include "spec/model_spec.h"

namespace sinter::kernels {

// c = op(a) op(b) (+ bias) [ADDS into c when accumulate]. With group_offsets, a product per expert (see MatmulArgs).
struct MatmulArgs {
  Tensor a;      // (M, K), or (K, M) when transpose_a
  WeightView b;  // (K, N), or (N, K) when transpose_b. One that is not plain is (N, K): it is dequantized on the way
  Tensor c;      // (M, N): the format of a, or f32 (fp8: see below)
  // c_columns > 0: c is wider than the product, which writes columns [c_first_column, c_first_column + c_columns) of it
  // (N = c_columns); addend is as wide as c. Without c_squares, and not with groups and transpose_a.
  int64_t c_first_column = 0, c_columns = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;
  float alpha = 1.0f;  // scales the product, not the bias
  Tensor bias;         // (N) in the format of c, or empty
  // c = alpha op(a) op(b) (+ bias) + beta addend: as c, but another tensor. Without accumulate and groups.
  Tensor addend;
  float beta = 1.0f;
  int64_t batch = 1;  // products of one shape: a, b and c hold so many matrices end to end. Without bias and groups
  // Grouped over E experts (rows of a sorted by expert), offsets (E + 1) i32 on the device:
  //   transpose_a false: rows [o[e], o[e+1]) of a and c use b[e]; b is (E, N, K) or (E, K, N), c (M, N).
  //   transpose_a true:  c[e] (E, M, N) = a[rows of e]^T b[rows of e]; a is (R, M), b.data (R, N). Empty groups give 0
  //                      (or leave c as it is when accumulate).
  Tensor group_offsets;
  // fp8: a and b each f8e4m3 or f8e5m2 (not both e5m2), without groups, transpose_b and not transpose_a, M, N and K
  // multiples of 16; c is bf16, f16 or f32. The product is multiplied by element 0 of both scales.
  Tensor a_scale, b_scale;         // f32, as Fp8Scaling's rows
  bool fast_accumulation = false;  // may keep fewer bits of the running sums (about 14) than f32 has
  // (1) f32 or empty, only where the table writes_square_sums: becomes the sum of the squares of all that c then holds,
  // by partial sums in an order fixed by its shape. c is f32, without groups and batch.
  Tensor c_squares;
};

// N of a product.
inline int64_t columns_of(const MatmulArgs& args) { return args.c_columns > 0 ? args.c_columns : args.c.size(-1); }
// Whether kernels that know plain weights and whole results only can run it.
inline bool is_ordinary(const MatmulArgs& args) { return args.b.is_plain() && args.c_columns == 0; }

// y[i] = row `rows[i]` of the weight, or row first_row + i where `rows` is not given, as plain numbers.
struct DequantizeArgs {
  WeightView weight;  // (N, K) or (E, N, K), not plain
  int64_t expert = 0;
  int64_t first_row = 0;
  Tensor rows;  // (R) i32 or empty
  Tensor y;     // (R, K) f32, bf16 or f16
};

// Product i of a call with a batch, on its own.
MatmulArgs matmul_of_batch(const MatmulArgs& args, int64_t i);

// A matrix product with what goes before or after it in a training step.
struct FusedMatmulArgs {
  MatmulArgs product;  // without groups
  // (M) f32 or empty, with transpose_a: the sums of a's columns, which is the gradient of a bias when c is that of its
  // weight. ADDS when accumulate_sums.
  Tensor a_sums;
  bool accumulate_sums = false;
  // An activation, without accumulation; c is in the format of a.
  //   pre_activation given:   pre_activation = product (+ bias), c = act(pre_activation).
  //   activation_input given: c = product * act'(activation_input), the activation's gradient.
  //   slope given:            c = act(product (+ bias)) and slope = act' there.
  //   slope_input given:      c = product * slope_input, the activation's gradient where slopes were kept.
  spec::Activation activation = spec::Activation::gelu_tanh;
  Tensor pre_activation;    // (M, N) in the format of c, or empty
  Tensor activation_input;  // (M, N) in the format of c, or empty
  Tensor slope;             // (M, N) in the format of c, or empty
  Tensor slope_input;       // (M, N) in the format of c, or empty
  Tensor c_sums;            // (N) f32 or empty, with activation_input or slope_input: ADDS the sums of c's columns
  // A gated activation (without slopes) of [gate | up] (M, 2 N), c (M, N):
  //   pre_activation given:   pre_activation (M, 2 N) = product, c = act(gate) * up. b is (2 N, K).
  //   activation_input given: gate_up_gradient from activation_input (M, 2 N) and the product, which is the gradient of
  //                           act(gate) * up. c is room for the product: it may hold it afterwards, or anything.
  bool gated = false;
  Tensor gate_up_gradient;  // (M, 2 N) in the format of c, or empty
};

// A product whose columns are heads, and the rotation of the first of them (RoPE).
struct RotatedMatmulArgs {
  MatmulArgs product;  // without accumulation, groups or an addend
  RopeArgs rope;       // of c: rope.x is c
};

}  // namespace sinter::kernels
