#include "server/task_queue.h"

#include "base/log.h"
#include "base/threads.h"

namespace sinter::server {

TaskQueue::TaskQueue(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

void TaskQueue::run() {
  base::leave_pool();
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return is_stopping_ || !tasks_.empty(); });
    if (is_stopping_) return;
    {
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      try {
        task();
      } catch (const std::exception& e) {
        base::log_error("a task failed: {}", e.what());
      }
    }
    lock.lock();
  }
}

void TaskQueue::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (is_stopping_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void TaskQueue::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    dropped.swap(tasks_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

}  // namespace sinter::server
