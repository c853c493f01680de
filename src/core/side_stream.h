// A further order of work on a device whose calls only enqueue: copies that run beside the main stream's kernels. The
// two are ordered by marks, which no host waits for.
#pragma once
#include <memory>

#include "core/device.h"

namespace sinter::core {

// A place in a stream's order of work.
class Mark {
 public:
  virtual ~Mark() = default;
  virtual void hold(Stream& later) = 0;  // what is enqueued there from now on begins after the mark
  virtual bool has_passed() = 0;
  virtual double seconds_since(Mark& earlier) = 0;  // waits for both
};

class SideStream {
 public:
  // Null where calls return when done: there is nothing to run beside.
  static std::unique_ptr<SideStream> make(Device device);
  virtual ~SideStream() = default;  // after its work
  virtual Stream& stream() = 0;     // its kernels give way to the main stream's
  // A mark after everything that is on a stream of this device so far.
  virtual std::unique_ptr<Mark> mark(Stream& stream) = 0;
};

// Implemented in core/cuda/side_stream.cc, or as absent in core/cuda_absent.cc.
std::unique_ptr<SideStream> make_cuda_side_stream(int index);

}  // namespace sinter::core
