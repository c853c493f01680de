// THE list of kernels. Table entries, the backends' declarations and tables, the shapes device, traces, clocks and the
// printed matrix are made from it: a new kernel is a line here, a struct in kernels/args/, and its code in a backend.
//
// X(name, Args, cpu, cuda): who has it. The reference has every kernel of the first list.
//   cpu:  cpu = a fast kernel of its own, reference = the plain loops serve
//   cuda: cuda = has it, absent = a call is an error that names the kernel
#pragma once

#define SINTER_KERNELS(X)                                                \
  X(fill, FillArgs, cpu, cuda)                                           \
  X(axpby, AxpbyArgs, cpu, cuda) /* also casts */                        \
  X(matmul, MatmulArgs, cpu, cuda)                                       \
  X(dequantize, DequantizeArgs, cpu, cuda)                               \
  X(column_sum, ColumnSumArgs, cpu, cuda)                                \
  X(embedding_forward, EmbeddingForwardArgs, cpu, cuda)                  \
  X(embedding_backward, EmbeddingBackwardArgs, cpu, cuda)                \
  X(norm_forward, NormForwardArgs, cpu, cuda)                            \
  X(norm_backward, NormBackwardArgs, cpu, cuda)                          \
  X(head_norm_forward, HeadNormForwardArgs, cpu, cuda)                   \
  X(head_norm_backward, HeadNormBackwardArgs, cpu, cuda)                 \
  X(rope_table, RopeTableArgs, reference, cuda)                          \
  X(rope, RopeArgs, cpu, cuda)                                           \
  X(kv_write, KvWriteArgs, cpu, cuda)                                    \
  X(attention_forward, AttentionForwardArgs, cpu, cuda)                  \
  X(attention_backward, AttentionBackwardArgs, cpu, cuda)                \
  X(activation_forward, ActivationForwardArgs, cpu, cuda)                \
  X(activation_backward, ActivationBackwardArgs, cpu, cuda)              \
  X(dropout, DropoutArgs, cpu, cuda)                                     \
  X(dropout_rows, RowDropoutArgs, reference, cuda)                       \
  X(row_noise, RowNoiseArgs, reference, cuda)                            \
  X(vocab_embedding_forward, VocabEmbeddingForwardArgs, cpu, cuda)       \
  X(vocab_embedding_backward, VocabEmbeddingBackwardArgs, cpu, cuda)     \
  X(softmax_terms, SoftmaxTermsArgs, cpu, cuda)                          \
  X(softmax_loss, SoftmaxLossArgs, reference, cuda)                      \
  X(softmax_gradient, SoftmaxGradientArgs, cpu, cuda)                    \
  X(attention_partial_forward, AttentionPartialForwardArgs, cpu, cuda)   \
  X(attention_combine, AttentionCombineArgs, reference, cuda)            \
  X(attention_partial_backward, AttentionPartialBackwardArgs, cpu, cuda) \
  X(cross_entropy, CrossEntropyArgs, cpu, cuda)                          \
  X(sample, SampleArgs, reference, cuda)                                 \
  X(copy_columns, CopyColumnsArgs, cpu, cuda)                            \
  X(column_dot, ColumnDotArgs, reference, cuda)                          \
  X(row_norm, RowNormArgs, reference, cuda)                              \
  X(router_forward, RouterForwardArgs, cpu, cuda)                        \
  X(router_backward, RouterBackwardArgs, cpu, cuda)                      \
  X(balance_loss, BalanceLossArgs, cpu, cuda)                            \
  X(expert_sort, ExpertSortArgs, cpu, cuda)                              \
  X(expert_gather, ExpertGatherArgs, cpu, cuda)                          \
  X(expert_combine, ExpertCombineArgs, cpu, cuda)                        \
  X(expert_combine_backward, ExpertCombineBackwardArgs, cpu, cuda)       \
  X(adamw, AdamwArgs, cpu, cuda)                                         \
  X(adamw_8bit, Adamw8bitArgs, reference, cuda)                          \
  X(sgd, SgdArgs, cpu, cuda)                                             \
  X(muon_momentum, MuonMomentumArgs, cpu, cuda)                          \
  X(normalize, NormalizeArgs, cpu, cuda)                                 \
  X(sum, SumArgs, reference, cuda)                                       \
  X(sum_squares, SumSquaresArgs, cpu, cuda)                              \
  X(fp8_quantize, Fp8QuantizeArgs, reference, cuda)                      \
  X(fp8_swiglu_forward, Fp8SwigluForwardArgs, reference, cuda)           \
  X(fp8_swiglu_backward, Fp8SwigluBackwardArgs, reference, cuda)         \
  X(fp8_rescale, Fp8RescaleArgs, reference, cuda)                        \
  X(step_control, StepControlArgs, reference, cuda)

// Kernels that do the work of several at once. A backend may have none, and takes only the calls it has a kernel for:
// false = nothing was done. Callers go through kernels/fused.h, which runs the parts instead.
#define SINTER_FUSED_KERNELS(X)                                             \
  X(fused_matmul, FusedMatmulArgs, cpu, cuda)                               \
  X(rotated_matmul, RotatedMatmulArgs, absent, cuda)                        \
  X(rotated_attention_backward, RotatedAttentionBackwardArgs, absent, cuda) \
  X(linear_cross_entropy, LinearCrossEntropyArgs, absent, cuda)
