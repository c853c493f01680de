// Threads that run tasks in the order of their arrival: what HttpServer::post is where there is no HTTP server.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sinter::server {

class TaskQueue {
 public:
  explicit TaskQueue(int threads);
  ~TaskQueue() { stop(); }
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  void post(std::function<void()> task);  // any thread; does nothing after stop()
  // Ends the threads after the tasks they are at; what waits is dropped.
  void stop();

 private:
  void run();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool is_stopping_ = false;
};

}  // namespace sinter::server
