// The plain loops behind reference_table(): one function per kernel of kernels/table.h, any floating format, sums in
// double. Slow and obvious on purpose; the fast kernels are tested against them.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::reference {

void fill(Stream&, const Tensor& y, float value);
void axpby(Stream&, const AxpbyArgs&);
void matmul(Stream&, const MatmulArgs&);
void column_sum(Stream&, const ColumnSumArgs&);
void embedding_forward(Stream&, const EmbeddingForwardArgs&);
void embedding_backward(Stream&, const EmbeddingBackwardArgs&);
void norm_forward(Stream&, const NormForwardArgs&);
void norm_backward(Stream&, const NormBackwardArgs&);
void head_norm_forward(Stream&, const HeadNormForwardArgs&);
void head_norm_backward(Stream&, const HeadNormBackwardArgs&);
void rope_table(Stream&, const RopeTableArgs&);
void rope(Stream&, const RopeArgs&);
void kv_write(Stream&, const KvWriteArgs&);
void attention_forward(Stream&, const AttentionForwardArgs&);
void attention_backward(Stream&, const AttentionBackwardArgs&);
void activation_forward(Stream&, const ActivationForwardArgs&);
void activation_backward(Stream&, const ActivationBackwardArgs&);
void dropout(Stream&, const DropoutArgs&);
void cross_entropy(Stream&, const CrossEntropyArgs&);
void router_forward(Stream&, const RouterForwardArgs&);
void router_backward(Stream&, const RouterBackwardArgs&);
void balance_loss(Stream&, const BalanceLossArgs&);
void expert_sort(Stream&, const ExpertSortArgs&);
void expert_gather(Stream&, const ExpertGatherArgs&);
void expert_combine(Stream&, const ExpertCombineArgs&);
void expert_combine_backward(Stream&, const ExpertCombineBackwardArgs&);
void adamw(Stream&, const AdamwArgs&);
void sgd(Stream&, const SgdArgs&);
void muon_momentum(Stream&, const MuonMomentumArgs&);
void normalize(Stream&, const NormalizeArgs&);
void sum(Stream&, const SumArgs&);
void sum_squares(Stream&, const SumSquaresArgs&);
void fp8_quantize(Stream&, const Fp8QuantizeArgs&);
void fp8_swiglu_forward(Stream&, const Fp8SwigluForwardArgs&);
void fp8_swiglu_backward(Stream&, const Fp8SwigluBackwardArgs&);
void fp8_rescale(Stream&, const Fp8RescaleArgs&);
void step_control(Stream&, const StepControlArgs&);

}  // namespace sinter::kernels::reference
