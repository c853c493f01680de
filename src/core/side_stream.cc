#include "core/side_stream.h"

namespace sinter::core {

std::unique_ptr<SideStream> SideStream::make(Device device) {
  return device.kind == DeviceKind::cuda ? make_cuda_side_stream(device.index) : nullptr;
}

}  // namespace sinter::core
