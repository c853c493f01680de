// Our kernels for Hopper (compute capability 9.0), built with CUTLASS from the files *_sm90.cu. Without it
// sm90_absent.cc takes nothing. All are for bf16, sizes in multiples of 8, addresses in multiples of 16 bytes.
#pragma once
#include "kernels/cuda/softmax_rows.h"
#include "kernels/fused.h"

namespace sinter::kernels::cuda {

// tanh-GELU, or SiLU with a gate (without a bias), in a product of at least a tile of rows.
bool sm90_takes(const Stream&, const FusedMatmulArgs&);
// pre_activation or slope given: pre = a b^T (+ bias), c = gelu(pre), and pre or gelu'(pre) stored.
void sm90_gelu_product(Stream&, const FusedMatmulArgs&);
// activation_input or slope_input given: c = (a b) * gelu'(activation_input) or (a b) * slope_input, c_sums too.
void sm90_gelu_slope_product(Stream&, const FusedMatmulArgs&);
// Gated, pre_activation given: pre_activation = [gate | up] = a b^T, c = silu(gate) * up.
void sm90_swiglu_product(Stream&, const FusedMatmulArgs&);
// Gated, activation_input given: gate_up_gradient from dh = a b, which goes to no memory.
void sm90_swiglu_slope_product(Stream&, const FusedMatmulArgs&);

// The softmax's terms in the product with a head's weight.
bool sm90_takes_softmax(const Stream&, const LinearCrossEntropyArgs&);
void sm90_softmax_product(Stream&, const SoftmaxTerms&);
int64_t sm90_softmax_tile();  // columns that share one of SoftmaxTerms' sums

// c = a b^T (+ bias), its heads of 64 or 128 columns rotated, with many rows.
bool sm90_takes_rope(const Stream&, const RotatedMatmulArgs&);
void sm90_rope_product(Stream&, const RotatedMatmulArgs&);

// c = a b^T + bias with many rows.
bool sm90_takes_bias(const Stream&, const MatmulArgs&);
void sm90_bias_product(Stream&, const MatmulArgs&);

// Causal attention over sequences of one length, heads of 64, without dropout; tensors are qkv and what else is read or
// written in 16 bits. Backward adds dq in no fixed order, in f32 in the attention's scratch memory: its last bits may
// differ from run to run.
bool sm90_takes_attention(const Stream&, const AttentionShape&, const RaggedBatch&,
                          std::initializer_list<const Tensor*> tensors);
void sm90_attention_forward(Stream&, const AttentionForwardArgs&);
// With cos_sin (T, D) f32, queries' and keys' gradients are turned back by these angles.
void sm90_attention_backward(Stream&, const AttentionBackwardArgs&, const Tensor& cos_sin);

// A product per expert: to bf16 without accumulation, or over the groups' rows (transpose_a) to f32.
bool sm90_takes_groups(const Stream&, const MatmulArgs&);
void sm90_grouped_matmul(Stream&, const MatmulArgs&);

}  // namespace sinter::kernels::cuda
