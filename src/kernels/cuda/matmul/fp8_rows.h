// Products of many rows with weights in fp8: the rows are rounded to fp8 too, each with a scale of its own (or one for
// each kFp8Group columns, where the weight has groups), found in the pass that rounds them, and cuBLASLt multiplies.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cuda {

inline constexpr int kFp8Group = 128;

// d = alpha * a b^T (+ bias) (+ beta * addend) over e4m3 codes: a (m, k) with a scale for each row, b (n, k) likewise;
// with groups, a scale for each kFp8Group columns of a row, stored (groups, rows).
struct ScaledProduct {
  int64_t m, n, k;
  bool has_groups;
  const void *a, *b;
  const float *a_scales, *b_scales;
  const void *bias, *addend;
  void* d;
  int64_t d_stride;
  base::DType out;
  float alpha, beta;
};

// Whether a product goes this way: the one place that decides it.
bool takes_fp8_rows(const Stream& stream, const MatmulArgs& args);
// False: cuBLASLt has no such product; c holds anything.
bool fp8_rows_matmul(Stream& stream, const MatmulArgs& args);

// cuBLASLt's. False: it has none, nothing was enqueued.
bool scaled_product(Stream& stream, const ScaledProduct& product);

}  // namespace sinter::kernels::cuda
