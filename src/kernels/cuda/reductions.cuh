// Sums over groups of partial sums, for kernels whose blocks each leave a row of them: reductions.cu.
#pragma once
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {

struct PartialSums {
  int num_arrays;
  float* y[3];  // null: not wanted
};
// sums.y[a][c] += the sum over g of partials[g][a][c], for the arrays that are wanted, in one launch.
void reduce_partial_arrays(Stream& stream, const float* partials, int64_t groups, int64_t columns,
                           const PartialSums& sums);

}  // namespace sinter::kernels::cuda
