// Built instead of kernels/cuda when CUDA is not.
#include "kernels/backend.h"
#include "kernels/batch_invariance.h"

namespace sinter::kernels {

const Backend& cuda_backend() {
  static const Backend absent;
  return absent;
}
void set_cuda_batch_invariant() {}

}  // namespace sinter::kernels
