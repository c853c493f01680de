#include "base/cpu.h"
#include "hwy/targets.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace {

// Highway asks the CPU itself; this makes it follow SINTER_ISA too. Before the first kernel runs.
void limit_highway_targets() {
  int64_t disabled = 0;
  if (!base::cpu_features().avx512) disabled |= HWY_AVX3 | HWY_AVX3_DL;
  if (!base::cpu_features().avx2) disabled |= HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
  if (disabled) hwy::DisableTargets(disabled);
}

KernelTable make_table() {
  limit_highway_targets();
  return {
      .name = "cpu",
      .fill = reference::fill,
      .axpby = reference::axpby,
      .matmul = cpu::matmul,
      .column_sum = reference::column_sum,
      .embedding_forward = reference::embedding_forward,
      .embedding_backward = reference::embedding_backward,
      .norm_forward = cpu::norm_forward,
      .norm_backward = cpu::norm_backward,
      .head_norm_forward = cpu::head_norm_forward,
      .head_norm_backward = cpu::head_norm_backward,
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
      .sum_squares = reference::sum_squares,
      .clip_control = reference::clip_control,
  };
}

}  // namespace

const KernelTable* cpu_table() {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace sinter::kernels
