// Batch-invariant mode (kernels/choices.h; SINTER_BATCH_INVARIANT=1): kernels that sum in another order for other
// batches are switched off, and products of a forward pass go through one kernel whose rows know nothing of each other.
#pragma once

namespace sinter::kernels {

// Before the first kernel. Implemented in kernels/cuda, or as absent in kernels/cuda_absent.cc.
void set_cuda_batch_invariant();

namespace cuda {
bool is_batch_invariant();
}

}  // namespace sinter::kernels
