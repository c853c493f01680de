// Built instead of kernels/cuda when CUDA is not.
#include "kernels/backend.h"

namespace sinter::kernels {

const Backend& cuda_backend() {
  static const Backend absent;
  return absent;
}

}  // namespace sinter::kernels
