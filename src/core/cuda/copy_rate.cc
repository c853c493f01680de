#include "core/copy_rate.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>

#include "core/cuda/check.h"
#include "core/tensor.h"

namespace sinter::core {

double cuda_host_copy_rate(int index) {
  constexpr size_t kBytes = size_t{512} << 20;
  constexpr int kTurns = 4;  // the first touches the pages
  DeviceRuntime& device = runtime({DeviceKind::cuda, index});
  const std::shared_ptr<std::byte[]> host = device.allocate_staging(kBytes);
  const Tensor there(device.allocator(), {static_cast<int64_t>(kBytes)}, DType::u8);
  auto* stream = static_cast<cudaStream_t>(device.stream().native);
  cudaEvent_t begin = nullptr, end = nullptr;
  SINTER_CUDA_CHECK(cudaEventCreate(&begin));
  SINTER_CUDA_CHECK(cudaEventCreate(&end));
  float best = 1e30f;
  for (int turn = 0; turn < kTurns; ++turn) {
    float ms = 0;
    SINTER_CUDA_CHECK(cudaEventRecord(begin, stream));
    SINTER_CUDA_CHECK(cudaMemcpyAsync(there.raw(), host.get(), kBytes, cudaMemcpyHostToDevice, stream));
    SINTER_CUDA_CHECK(cudaEventRecord(end, stream));
    SINTER_CUDA_CHECK(cudaEventSynchronize(end));
    SINTER_CUDA_CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (turn > 0) best = std::min(best, ms);
  }
  SINTER_CUDA_CHECK(cudaEventDestroy(begin));
  SINTER_CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(kBytes) / (best * 1e-3);
}

}  // namespace sinter::core
