#include "core/tensor.h"

namespace sinter::core {

std::vector<float> to_host_floats(const Tensor& t) {
  if (t.dtype() == DType::f32) return to_host<float>(t);
  std::vector<std::byte> raw(t.bytes());
  DeviceRuntime& device = runtime(t.device());
  device.copy_to_host(raw.data(), t.raw(), t.bytes(), device.stream());
  device.synchronize(device.stream());
  std::vector<float> values(static_cast<size_t>(t.num_elements()));
  base::convert_elements(t.dtype(), raw.data(), DType::f32, values.data(), values.size());
  return values;
}

std::span<const float> host_floats(const Tensor& t, std::vector<float>& scratch) {
  if (t.device().kind == DeviceKind::cpu && t.dtype() == DType::f32)
    return {t.data<float>(), static_cast<size_t>(t.num_elements())};
  scratch = to_host_floats(t);
  return scratch;
}

}  // namespace sinter::core
