// Built instead of the files *_sm90.cu when CUTLASS is not found or sm_90a is not built for: activations run apart from
// their products, losses apart from their logits, experts and attention by our other kernels and cuDNN.
#include "base/error.h"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {

bool sm90_takes(const Stream&, const FusedMatmulArgs&) { return false; }
void sm90_gelu_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }
void sm90_gelu_slope_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }
void sm90_swiglu_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }
void sm90_swiglu_slope_product(Stream&, const FusedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }

bool sm90_takes_softmax(const Stream&, const LinearCrossEntropyArgs&) { return false; }
void sm90_softmax_product(Stream&, const SoftmaxTerms&) { base::fail("[matmul] built without CUTLASS"); }
int64_t sm90_softmax_tile() { return 1; }

bool sm90_takes_rope(const Stream&, const RotatedMatmulArgs&) { return false; }
void sm90_rope_product(Stream&, const RotatedMatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }

bool sm90_takes_bias(const Stream&, const MatmulArgs&) { return false; }
void sm90_bias_product(Stream&, const MatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }

bool sm90_takes_attention(const Stream&, const AttentionShape&, const RaggedBatch&,
                          std::initializer_list<const Tensor*>) {
  return false;
}
void sm90_attention_forward(Stream&, const AttentionForwardArgs&) { base::fail("[attention] built without CUTLASS"); }
void sm90_attention_backward(Stream&, const AttentionBackwardArgs&, const Tensor&) {
  base::fail("[attention] built without CUTLASS");
}

bool sm90_takes_groups(const Stream&, const MatmulArgs&) { return false; }
void sm90_grouped_matmul(Stream&, const MatmulArgs&) { base::fail("[matmul] built without CUTLASS"); }

}  // namespace sinter::kernels::cuda
