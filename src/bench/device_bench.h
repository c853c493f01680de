// What benchmarks of single kernels share: tensors of made-up values on a device, and the time a call takes there.
#pragma once
#include <functional>

#include "core/device.h"
#include "core/tensor.h"
#include "kernels/table.h"

namespace sinter::bench {

class DeviceBench {
 public:
  // Throws base::Error when there is no such device.
  explicit DeviceBench(core::Device device);

  core::DeviceRuntime& runtime() { return runtime_; }
  core::Stream& stream() { return runtime_.stream(); }
  const kernels::KernelTable& table() { return table_; }

  // Random values, so that matrix products draw the power real data draws: a small random block, repeated.
  core::Tensor values(core::Shape shape, core::DType dtype, float scale = 1.0f);
  core::Tensor integers(int64_t count, const std::function<int32_t(int64_t)>& value);

  // Seconds of one call: the median over batches of calls of about 20 ms each.
  double time(const std::function<void()>& call);

 private:
  core::DeviceRuntime& runtime_;
  const kernels::KernelTable& table_;
};

}  // namespace sinter::bench
