// Work beside the program's own: one task at a time in a thread of its own, for what mostly waits on files. Inside a
// task parallel_for runs in that thread alone, and its priority is lower: the pool and the processors stay with the
// work that must not be held up.
#pragma once
#include <atomic>
#include <exception>
#include <functional>
#include <thread>

namespace sinter::base {

class BackgroundTask {
 public:
  BackgroundTask() = default;
  ~BackgroundTask();  // waits; an error that nobody took is dropped
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Begins a task. There must be none: wait() has returned since the last one was begun. Where the system has no more
  // threads the task has run when start() returns.
  void start(std::function<void()> task);
  bool is_running() const { return is_running_.load(std::memory_order_acquire); }
  // Until the task has ended; rethrows its error. At once when there is none.
  void wait();

 private:
  std::thread thread_;
  std::atomic<bool> is_running_{false};
  std::exception_ptr error_;
};

}  // namespace sinter::base
