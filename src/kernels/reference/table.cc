#include "kernels/reference/reference.h"

namespace sinter::kernels {

const KernelTable* reference_table() {
  static constexpr KernelTable kTable{
      .name = "reference",
      .fill = reference::fill,
      .axpby = reference::axpby,
      .matmul = reference::matmul,
      .column_sum = reference::column_sum,
      .embedding_forward = reference::embedding_forward,
      .embedding_backward = reference::embedding_backward,
      .norm_forward = reference::norm_forward,
      .norm_backward = reference::norm_backward,
      .head_norm_forward = reference::head_norm_forward,
      .head_norm_backward = reference::head_norm_backward,
      .rope_table = reference::rope_table,
      .rope = reference::rope,
      .kv_write = reference::kv_write,
      .attention_forward = reference::attention_forward,
      .attention_backward = reference::attention_backward,
      .activation_forward = reference::activation_forward,
      .activation_backward = reference::activation_backward,
      .dropout = reference::dropout,
      .cross_entropy = reference::cross_entropy,
      .router_forward = reference::router_forward,
      .router_backward = reference::router_backward,
      .balance_loss = reference::balance_loss,
      .expert_sort = reference::expert_sort,
      .expert_gather = reference::expert_gather,
      .expert_combine = reference::expert_combine,
      .expert_combine_backward = reference::expert_combine_backward,
      .adamw = reference::adamw,
      .sgd = reference::sgd,
      .muon_momentum = reference::muon_momentum,
      .normalize = reference::normalize,
      .sum = reference::sum,
      .sum_squares = reference::sum_squares,
      .fp8_quantize = reference::fp8_quantize,
      .fp8_swiglu_forward = reference::fp8_swiglu_forward,
      .fp8_swiglu_backward = reference::fp8_swiglu_backward,
      .fp8_rescale = reference::fp8_rescale,
      .step_control = reference::step_control,
  };
  return &kTable;
}

}  // namespace sinter::kernels
