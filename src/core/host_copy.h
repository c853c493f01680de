// Device values on their way to the host, read some time after they were asked for: the host goes on meanwhile.
#pragma once
#include <memory>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace sinter::core {

class HostCopy {
 public:
  HostCopy(Device device, int64_t num_floats)
      : runtime_(&runtime(device)),
        event_(runtime_->make_event()),
        staging_(runtime_->allocate_staging(static_cast<size_t>(num_floats) * sizeof(float))),
        num_floats_(num_floats) {}

  // Enqueues the copy of `source` (num_floats) f32. The last one must have been taken.
  void post(const Tensor& source) {
    assert(source.num_elements() == num_floats_ && source.dtype() == DType::f32);
    runtime_->copy_to_host(staging_.get(), source.raw(), source.bytes(), runtime_->stream());
    event_->record(runtime_->stream());
  }
  // The values of the last post; waits for them and for nothing that was enqueued later.
  std::vector<float> take() {
    event_->wait();
    const auto* values = reinterpret_cast<const float*>(staging_.get());
    return {values, values + num_floats_};
  }

 private:
  DeviceRuntime* runtime_;
  std::unique_ptr<Event> event_;
  std::shared_ptr<std::byte[]> staging_;
  int64_t num_floats_;
};

}  // namespace sinter::core
