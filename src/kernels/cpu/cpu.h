// The fast kernels behind cpu_table(): contracts in kernels/table.h. Each picks its instruction set at run time.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cpu {

void fill(Stream&, const Tensor& y, float value);
void axpby(Stream&, const AxpbyArgs&);
void matmul_activation(Stream&, const FusedMatmulArgs&);
void column_sum(Stream&, const ColumnSumArgs&);
void embedding_forward(Stream&, const EmbeddingForwardArgs&);
void embedding_backward(Stream&, const EmbeddingBackwardArgs&);
void norm_forward(Stream&, const NormForwardArgs&);
void norm_backward(Stream&, const NormBackwardArgs&);
void head_norm_forward(Stream&, const HeadNormForwardArgs&);
void head_norm_backward(Stream&, const HeadNormBackwardArgs&);
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
void sum_squares(Stream&, const SumSquaresArgs&);

// y (width) += the parts (count, width), in order.
void add_parts(const float* parts, int64_t count, int64_t width, float* y);

}  // namespace sinter::kernels::cpu
