// Copies of what is offloaded, beside the computation: blocks come and go while others are computed. On the CPU a
// thread does them, on a GPU a stream whose kernels reach the host's memory over the bus.
#pragma once
#include <memory>

#include "comm/communicator.h"
#include "core/tensor.h"

namespace sinter::train {

class Copies {
 public:
  // For a step on this device.
  static std::unique_ptr<Copies> make(core::Device device);
  virtual ~Copies() = default;  // after the copies under way

  // to = from, the formats may differ; or to += from, both f32. As many elements, both in memory that the device
  // reaches. Copies are done in the order of these calls, after the work that is on the main stream now; neither tensor
  // may be touched until the work was waited for.
  virtual comm::Handle start(const core::Tensor& from, const core::Tensor& to, bool adds = false) = 0;

  virtual double busy_seconds() = 0;    // spent on copies
  virtual double waited_seconds() = 0;  // that the computation waited for them
};

// copy_thread.cc and copy_stream.cc.
std::unique_ptr<Copies> make_copy_thread();
std::unique_ptr<Copies> make_copy_stream(core::Device device);  // null where calls return when done

}  // namespace sinter::train
