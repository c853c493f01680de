// Products of few rows, as decoding has them: the time is that of reading the weight once.
#pragma once
#include "kernels/fused.h"

namespace sinter::kernels::cuda {

// c = a b^T (+ bias) (+ addend) of at most kMostSmallRows rows, in bf16 or f16 with f32 sums; b plain or in fp8 with a
// scale for each row or for each 128 columns of it. Of at most kMostQuantizedRows rows where b is in GGUF's blocks
// (q8_0, q4_0, q4_k, q5_k, q6_k, mxfp4) or in codes (int4, int8, nf4, fp4, fp8). False: not taken, nothing was
// enqueued. A row's result depends neither on the other rows nor on how many there are.
inline constexpr int64_t kMostSmallRows = 16, kMostQuantizedRows = 32;
bool small_matmul(Stream&, const MatmulArgs&);
bool small_fused_matmul(Stream&, const FusedMatmulArgs&);      // gated, forward
bool small_rotated_matmul(Stream&, const RotatedMatmulArgs&);  // forward

}  // namespace sinter::kernels::cuda
