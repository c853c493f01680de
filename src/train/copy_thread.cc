#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "base/dtype.h"
#include "base/error.h"
#include "train/copies.h"

namespace sinter::train {
namespace {

double clock_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void copy(const core::Tensor& from, const core::Tensor& to, bool adds) {
  const auto count = static_cast<size_t>(from.num_elements());
  if (!adds) {
    base::convert_elements(from.dtype(), from.raw(), to.dtype(), to.raw(), count);
    return;
  }
  const float* x = from.data<float>();
  float* y = to.data<float>();
  for (size_t i = 0; i < count; ++i) y[i] += x[i];
}

class CopyThread : public Copies {
 public:
  CopyThread() : thread_([this] { run(); }) {}
  ~CopyThread() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
    }
    has_work_.notify_all();
    thread_.join();
  }
  CopyThread(const CopyThread&) = delete;
  CopyThread& operator=(const CopyThread&) = delete;

  comm::Handle start(const core::Tensor& from, const core::Tensor& to, bool adds) override;
  double busy_seconds() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return busy_seconds_;
  }
  double waited_seconds() override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waited_seconds_;
  }

 private:
  struct Job {
    core::Tensor from, to;
    bool adds = false, is_done = false;
  };
  class Copying;
  void run();

  std::mutex mutex_;
  std::condition_variable has_work_, has_result_;
  std::deque<std::shared_ptr<Job>> jobs_;
  bool is_ending_ = false;
  double busy_seconds_ = 0, waited_seconds_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

class CopyThread::Copying : public comm::Work {
 public:
  Copying(CopyThread& thread, std::shared_ptr<Job> job) : thread_(thread), job_(std::move(job)) {}
  ~Copying() override { wait(); }  // the tensors may go
  bool advance() override {
    const std::lock_guard<std::mutex> lock(thread_.mutex_);
    return job_->is_done;
  }
  void wait() override {
    std::unique_lock<std::mutex> lock(thread_.mutex_);
    if (job_->is_done) return;
    const double begin = clock_now();
    thread_.has_result_.wait(lock, [&] { return job_->is_done; });
    thread_.waited_seconds_ += clock_now() - begin;
  }

 private:
  CopyThread& thread_;
  std::shared_ptr<Job> job_;
};

comm::Handle CopyThread::start(const core::Tensor& from, const core::Tensor& to, bool adds) {
  SINTER_CHECK(from.num_elements() == to.num_elements(), "[offload] {} elements copied to {}", from.num_elements(),
               to.num_elements());
  SINTER_CHECK(!adds || (from.dtype() == core::DType::f32 && to.dtype() == core::DType::f32),
               "[offload] {} added to {}; expected f32", base::dtype_name(from.dtype()), base::dtype_name(to.dtype()));
  auto job = std::make_shared<Job>(Job{from, to, adds});
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.push_back(job);
  }
  has_work_.notify_one();
  return std::make_unique<Copying>(*this, std::move(job));
}

void CopyThread::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    has_work_.wait(lock, [&] { return is_ending_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::shared_ptr<Job> job = jobs_.front();
    jobs_.pop_front();
    lock.unlock();
    const double begin = clock_now();
    copy(job->from, job->to, job->adds);
    lock.lock();
    busy_seconds_ += clock_now() - begin;
    job->is_done = true;
    has_result_.notify_all();
  }
}

}  // namespace

std::unique_ptr<Copies> make_copy_thread() { return std::make_unique<CopyThread>(); }

std::unique_ptr<Copies> Copies::make(core::Device device) {
  std::unique_ptr<Copies> beside = make_copy_stream(device);
  return beside ? std::move(beside) : make_copy_thread();
}

}  // namespace sinter::train
