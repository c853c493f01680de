// Copies of what is offloaded, on a thread of their own: blocks come and go while others are computed.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/communicator.h"
#include "core/tensor.h"

namespace sinter::train {

class CopyThread {
 public:
  CopyThread();
  ~CopyThread();  // after the copies under way
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  // to = from, the formats may differ; or to += from, both f32. Both in the host's memory and as many elements. Copies
  // are done in the order of these calls; neither tensor may be touched until the work was waited for.
  comm::Handle start(const core::Tensor& from, const core::Tensor& to, bool adds = false);

  double busy_seconds() const;    // spent on copies
  double waited_seconds() const;  // that callers waited for them

 private:
  struct Job {
    core::Tensor from, to;
    bool adds = false, is_done = false;
  };
  class Copying;
  void run();

  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_result_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool is_ending_ = false;
  double busy_seconds_ = 0, waited_seconds_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace sinter::train
