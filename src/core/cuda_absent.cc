// Built instead of core/cuda when CUDA is not: there is no such device.
#include "base/error.h"
#include "core/copy_rate.h"
#include "core/device.h"
#include "core/graph.h"
#include "core/side_stream.h"

namespace sinter::core {

DeviceRuntime* cuda_runtime(int) { return nullptr; }
std::string why_no_cuda(int) { return "this sinter was built without CUDA (build with `make cuda`)"; }
double cuda_host_copy_rate(int) { return 0; }
std::unique_ptr<SideStream> make_cuda_side_stream(int) { return nullptr; }
bool has_captured() { return false; }
std::unique_ptr<Graph> cuda_capture(Stream& stream, const std::function<void()>&) {
  base::fail("nothing can be captured on {}: this sinter was built without CUDA", stream.device.to_string());
}

}  // namespace sinter::core
