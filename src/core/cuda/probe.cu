// Whether this program has code for a GPU: asked of a kernel that is built as all others are.
#include "core/cuda/check.h"
#include "core/cuda/probe.h"

namespace sinter::core {
namespace {

__global__ void nothing_kernel() {}

}  // namespace

bool has_kernels_for_current_gpu() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, nothing_kernel);
  if (status == cudaSuccess) return true;
  cudaGetLastError();  // what was asked stays behind as the last error
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorUnsupportedPtxVersion) {
    return false;
  }
  SINTER_CUDA_CHECK(status);
  return false;
}

}  // namespace sinter::core
