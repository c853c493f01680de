#include "core/copy_rate.h"

namespace sinter::core {

double host_copy_rate(Device device) { return device.kind == DeviceKind::cuda ? cuda_host_copy_rate(device.index) : 0; }

}  // namespace sinter::core
