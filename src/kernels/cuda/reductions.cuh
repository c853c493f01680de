// Sums over groups of partial sums, for kernels whose blocks each leave a row of them: reductions.cu.
#pragma once
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {

// first[c] += the sum over g of partials[g][0][c], and second (when given) that of partials[g][1][c], in one launch.
void reduce_two_partials(Stream& stream, const float* partials, int64_t groups, int64_t columns, float* first,
                         float* second);

}  // namespace sinter::kernels::cuda
