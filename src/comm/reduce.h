// Reductions of what several ranks sent, in the order of the ranks.
#pragma once
#include "comm/communicator.h"

namespace sinter::comm {

// parts: (ranks, n), one row a rank; out: (n), of the same format. Sums are taken in double (whole numbers in int64)
// from rank 0 on and rounded once.
void reduce_in_rank_order(const core::Tensor& parts, const core::Tensor& out, ReduceOp op);

}  // namespace sinter::comm
