#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sinter::base {
namespace {

thread_local int t_index = 0;
thread_local bool t_inside = false;

void spin_pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int available_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

int default_threads() {
  if (const char* text = std::getenv("SINTER_THREADS"); text && *text) {
    int n = std::atoi(text);
    SINTER_CHECK(n >= 1 && n <= 1024, "SINTER_THREADS is '{}'; expected a number from 1 to 1024", text);
    return n;
  }
  return available_cpus();
}

constexpr int kSpins = 4000;  // about 100 us: most kernels of a step follow each other faster than that

// Workers wait for a new job number (spinning a little, then sleeping), take pieces from a shared counter, and report
// back. One job at a time: the mutex in run() serialises callers from different threads.
class Pool {
 public:
  explicit Pool(int count) : count_(count), spins_(count <= available_cpus() ? kSpins : kSpins / 64) {
    try {
      for (int i = 1; i < count; ++i) workers_.emplace_back([this, i] { work(i); });
    } catch (const std::system_error& e) {
      stop();
      fail("cannot start thread {} of {}: {}; give SINTER_THREADS fewer, or raise the limit (ulimit -u)",
           workers_.size() + 2, count, e.what());
    }
  }
  ~Pool() { stop(); }
  int count() const { return count_; }

  void run(int64_t total, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
    std::lock_guard caller(run_mutex_);
    body_ = &body;
    total_ = total;
    grain_ = grain;
    next_.store(0, std::memory_order_relaxed);
    error_ = nullptr;
    pending_.store(count_ - 1, std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex_);
      job_.fetch_add(1, std::memory_order_release);
    }
    if (sleeping_.load() > 0) wake_.notify_all();
    take_pieces();
    while (pending_.load(std::memory_order_acquire) != 0) spin_pause_or_yield();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  void stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      ++job_;
    }
    wake_.notify_all();
    for (auto& w : workers_) w.join();
  }

  // A thread that yields to another program may be gone for milliseconds, so the wait for the last pieces of others is
  // spun away first. With fewer CPUs than threads (ranks sharing a core) that would starve the others.
  void spin_pause_or_yield() {
    for (int i = 0; i < spins_; ++i) {
      if (pending_.load(std::memory_order_acquire) == 0) return;
      spin_pause();
    }
    std::this_thread::yield();
  }

  void take_pieces() {
    bool was_inside = std::exchange(t_inside, true);
    try {
      for (;;) {
        int64_t begin = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (begin >= total_) break;
        (*body_)(begin, std::min(begin + grain_, total_));
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
      next_.store(total_, std::memory_order_relaxed);
    }
    t_inside = was_inside;
  }

  void work(int index) {
    t_index = index;
    uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (job_.load(std::memory_order_acquire) == seen && spins < kSpins) {
        spin_pause();
        ++spins;
      }
      if (job_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        ++sleeping_;
        wake_.wait(lock, [&] { return job_.load() != seen; });
        --sleeping_;
      }
      seen = job_.load(std::memory_order_acquire);
      if (stop_) return;
      take_pieces();
      pending_.fetch_sub(1, std::memory_order_release);
    }
  }

  const int count_;
  const int spins_;  // of the caller at the end, before it yields
  std::vector<std::thread> workers_;
  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_;
  std::atomic<uint64_t> job_{0};
  std::atomic<int> sleeping_{0}, pending_{0};
  std::atomic<int64_t> next_{0};
  int64_t total_ = 0, grain_ = 1;
  FunctionRef<void(int64_t, int64_t)>* body_ = nullptr;
  std::exception_ptr error_;
  bool stop_ = false;
};

std::unique_ptr<Pool>& pool() {
  static std::unique_ptr<Pool> instance = std::make_unique<Pool>(default_threads());
  return instance;
}

}  // namespace

int num_threads() { return pool()->count(); }

void set_num_threads(int count) {
  SINTER_CHECK(count >= 1 && count <= 1024, "{} threads asked for; expected 1 to 1024", count);
  if (pool()->count() != count) pool() = std::make_unique<Pool>(count);
}

int thread_index() { return t_index; }

void leave_pool() { t_inside = true; }

void parallel_for(int64_t count, int64_t grain, FunctionRef<void(int64_t, int64_t)> body) {
  if (count <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (t_inside || count <= grain || pool()->count() == 1) {
    // Keep the pieces the same as with many threads: kernels may rely on a piece never exceeding the grain.
    for (int64_t begin = 0; begin < count; begin += grain) body(begin, std::min(begin + grain, count));
    return;
  }
  pool()->run(count, grain, body);
}

}  // namespace sinter::base
