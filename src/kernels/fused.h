// A matrix product with what goes before or after it in a training step. A backend that has a kernel for the whole
// takes it (on the CPU the table's matmul_activation); elsewhere the parts run one after the other by the kernels of
// the table, with the same results to rounding.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels {

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

// `table` is the stream's device's.
void fused_matmul(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args);

// The parts by the table's kernels.
void matmul_in_parts(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args);

// A product whose columns are heads, and the rotation of the first of them (RoPE).
struct RotatedMatmulArgs {
  MatmulArgs product;  // without accumulation, groups or an addend
  RopeArgs rope;       // of c: rope.x is c
};
void rotated_matmul(const KernelTable& table, Stream& stream, const RotatedMatmulArgs& args);

// The gradient of attention whose queries and keys had been rotated by cos_sin (T, D) (RoPE): that of the rows before.
// Without cos_sin attention_backward alone.
void rotated_attention_backward(const KernelTable& table, Stream& stream, const AttentionBackwardArgs& args,
                                const Tensor& cos_sin);

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
void linear_cross_entropy(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args);
void linear_cross_entropy_in_parts(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args);

// Implemented in kernels/cuda/matmul/fused_matmul.cc, table.cc and linear_cross_entropy.cc, or as absent in
// kernels/cuda_absent.cc. False: nothing was done, else all.
bool cuda_fused_matmul(Stream& stream, const FusedMatmulArgs& args);
bool cuda_rotated_matmul(Stream& stream, const RotatedMatmulArgs& args);
bool cuda_rotated_attention_backward(Stream& stream, const AttentionBackwardArgs& args, const Tensor& cos_sin);
bool cuda_linear_cross_entropy(Stream& stream, const LinearCrossEntropyArgs& args);

}  // namespace sinter::kernels
