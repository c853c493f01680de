// Built instead of core/cuda when CUDA is not: there is no such device.
#include "base/error.h"
#include "core/device.h"
#include "core/graph.h"

namespace sinter::core {

bool has_cuda_backend() { return false; }
DeviceRuntime* cuda_runtime(int) { return nullptr; }
bool has_captured() { return false; }
std::unique_ptr<Graph> cuda_capture(Stream& stream, const std::function<void()>&) {
  base::fail("nothing can be captured on {}: this sinter was built without CUDA", stream.device.to_string());
}

}  // namespace sinter::core
