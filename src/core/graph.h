// Work on a device that is recorded once and enqueued again as a whole. On CUDA that is a graph: one launch by the host
// instead of one for every kernel, which is what small models wait for.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>

#include "base/error.h"
#include "core/device.h"

namespace sinter::core {

// Work recorded by capture().
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void replay() = 0;  // enqueues the work, in the order of the stream it was captured on
};

class CaptureError : public base::Error {
 public:
  using Error::Error;
};

// Records what `work` enqueues on the stream; nothing of it runs before replay(). For that, `work`
//   - has run once before: by then kernels have chosen their algorithms and the backend holds all the memory they need,
//   - reads and writes the same addresses every time, alive as long as the graph is,
//   - neither waits for the device, nor allocates on it, nor copies from or to the host.
// Throws CaptureError when it does something that cannot be recorded; the stream goes on as if nothing had been called.
// Where calls return when done (CPU, shapes) there is nothing to record: replay() calls `work`.
std::unique_ptr<Graph> capture(Stream& stream, std::function<void()> work);

// Whether anything has been captured on a GPU so far: memory that a backend keeps between calls must stay from then on.
bool has_captured();

// Work that is done again and again: called the first time, captured the second, replayed from then on.
class RepeatedWork {
 public:
  // `work` must enqueue the same every time. On a replay it is not called: what it does on the host is the caller's to
  // do. Throws as capture() does; the work is not done then, and a later call captures again.
  void run(Stream& stream, const std::function<void()>& work);
  int64_t num_replays() const { return num_replays_; }

 private:
  bool has_run_ = false;
  std::unique_ptr<Graph> graph_;
  int64_t num_replays_ = 0;
};

// Implemented in core/cuda/graph.cc, or as absent in core/cuda_absent.cc.
std::unique_ptr<Graph> cuda_capture(Stream& stream, const std::function<void()>& work);

}  // namespace sinter::core
