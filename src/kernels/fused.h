// Fused work: a backend that has a kernel for the whole takes it (an entry of the table that may be null or decline);
// elsewhere the parts run one after the other by the kernels of the table, with the same results to rounding.
// `table` is the stream's device's in every call.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels {

void fused_matmul(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args);
void matmul_in_parts(const KernelTable& table, Stream& stream, const FusedMatmulArgs& args);

void rotated_matmul(const KernelTable& table, Stream& stream, const RotatedMatmulArgs& args);

// Without cos_sin attention_backward alone.
void rotated_attention_backward(const KernelTable& table, Stream& stream, const RotatedAttentionBackwardArgs& args);

void linear_cross_entropy(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args);
void linear_cross_entropy_in_parts(const KernelTable& table, Stream& stream, const LinearCrossEntropyArgs& args);

}  // namespace sinter::kernels
