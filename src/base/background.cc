#include "base/background.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cassert>
#include <system_error>
#include <utility>

#include "base/threads.h"

namespace sinter::base {
namespace {

constexpr int kNice = 5;  // a quarter of a core where all are busy

// On Linux a priority belongs to a thread. Lowering it needs no rights; where it fails nothing is lost.
void lower_priority() { (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kNice); }

}  // namespace

BackgroundTask::~BackgroundTask() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundTask::start(std::function<void()> task) {
  assert(!thread_.joinable());
  auto run = [this, task = std::move(task)] {
    try {
      task();
    } catch (...) {
      error_ = std::current_exception();
    }
    is_running_.store(false, std::memory_order_release);
  };
  is_running_.store(true, std::memory_order_relaxed);
  try {
    thread_ = std::thread([run] {
      lower_priority();
      leave_pool();
      run();
    });
  } catch (const std::system_error&) {  // the system has no more threads
    run();
  }
}

void BackgroundTask::wait() {
  if (thread_.joinable()) thread_.join();
  if (std::exception_ptr error = std::exchange(error_, nullptr)) std::rethrow_exception(error);
}

}  // namespace sinter::base
