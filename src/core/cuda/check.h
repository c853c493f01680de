// Error checks of CUDA calls. Every call whose failure matters goes through one of these: an unchecked CUDA error
// surfaces later elsewhere.
#pragma once
#include <cuda_runtime_api.h>

#include "base/error.h"

// Throws base::Error with the call, its place and CUDA's own words unless the call returns cudaSuccess.
#define SINTER_CUDA_CHECK(call)                                                               \
  do {                                                                                        \
    cudaError_t sinter_status_ = (call);                                                      \
    if (sinter_status_ != cudaSuccess) [[unlikely]]                                           \
      ::sinter::core::fail_cuda(#call, __FILE__, __LINE__, static_cast<int>(sinter_status_)); \
  } while (0)

// After a kernel launch: reports a bad launch here and not at the next unrelated call.
#define SINTER_CUDA_LAUNCHED() SINTER_CUDA_CHECK(cudaGetLastError())

namespace sinter::core {

[[noreturn]] void fail_cuda(const char* call, const char* file, int line, int status);

}  // namespace sinter::core
