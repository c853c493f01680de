#include "base/cpu.h"
#include "hwy/targets.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/matmul/matmul.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels {
namespace {

// Highway asks the CPU itself; this makes it follow SINTER_ISA too. Before the first kernel runs.
void choose_vector_code() {
  int64_t disabled = 0;
  if (!base::cpu_features().avx512) disabled |= HWY_AVX3 | HWY_AVX3_DL;
  if (!base::cpu_features().avx2) disabled |= HWY_AVX2 | HWY_SSE4 | HWY_SSSE3;
  if (disabled) hwy::DisableTargets(disabled);
  cpu::has_bf16_rounding = base::cpu_features().avx512_bf16;
}

KernelTable make_table() {
  choose_vector_code();
  return {
      .name = "cpu",
      .leaves_squares = true,
      .fill = cpu::fill,
      .axpby = cpu::axpby,
      .matmul = cpu::matmul,
      .matmul_activation = cpu::matmul_activation,
      .column_sum = cpu::column_sum,
      .embedding_forward = cpu::embedding_forward,
      .embedding_backward = cpu::embedding_backward,
      .norm_forward = cpu::norm_forward,
      .norm_backward = cpu::norm_backward,
      .head_norm_forward = cpu::head_norm_forward,
      .head_norm_backward = cpu::head_norm_backward,
      .rope_table = reference::rope_table,
      .rope = cpu::rope,
      .kv_write = cpu::kv_write,
      .attention_forward = cpu::attention_forward,
      .attention_backward = cpu::attention_backward,
      .activation_forward = cpu::activation_forward,
      .activation_backward = cpu::activation_backward,
      .dropout = cpu::dropout,
      .cross_entropy = cpu::cross_entropy,
      .router_forward = cpu::router_forward,
      .router_backward = cpu::router_backward,
      .balance_loss = cpu::balance_loss,
      .expert_sort = cpu::expert_sort,
      .expert_gather = cpu::expert_gather,
      .expert_combine = cpu::expert_combine,
      .expert_combine_backward = cpu::expert_combine_backward,
      .adamw = cpu::adamw,
      .sgd = cpu::sgd,
      .muon_momentum = cpu::muon_momentum,
      .normalize = cpu::normalize,
      .sum = reference::sum,
      .sum_squares = cpu::sum_squares,
      .fp8_quantize = reference::fp8_quantize,
      .fp8_swiglu_forward = reference::fp8_swiglu_forward,
      .fp8_swiglu_backward = reference::fp8_swiglu_backward,
      .fp8_rescale = reference::fp8_rescale,
      .step_control = reference::step_control,
  };
}

}  // namespace

const KernelTable* cpu_table() {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace sinter::kernels
