#include "engine/engine_loop.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include "base/log.h"

namespace sinter::engine {

struct EngineLoop::State {
  State(Engine& e, const LoopOptions& o) : engine(e), options(o) {}

  void run();
  void watch();
  void end_requests();
  // Whoever waits looks again, also one that was just about to wait.
  void wake_up() {
    {
      const std::lock_guard lock(mutex);
      has_news = true;
    }
    wake.notify_all();
  }

  Engine& engine;
  LoopOptions options;
  mutable std::mutex mutex;
  std::condition_variable wake, idle;
  bool is_stopping = false, has_ended = false, has_news = false;
  std::string error;
  std::thread thread, watchdog;
};

// Steps while there is work, then waits until somebody submits or cancels.
void EngineLoop::State::run() {
  std::unique_lock lock(mutex);
  while (!is_stopping) {
    has_news = false;
    lock.unlock();
    bool did = false;
    std::string problem;
    try {
      did = engine.step();
    } catch (const std::exception& e) {
      problem = e.what();
    }
    lock.lock();
    if (!problem.empty()) {
      error = problem;
      base::log_error("the engine's loop ends: {}", problem);
      break;
    }
    if (!engine.has_work()) idle.notify_all();
    // Work that cannot go on (memory released) is looked at again now and then.
    if (did) continue;
    wake.wait_for(lock, std::chrono::milliseconds(engine.has_work() ? 2 : 50), [&] { return has_news || is_stopping; });
  }
  lock.unlock();
  end_requests();
  lock.lock();
  has_ended = true;
  idle.notify_all();
}

void EngineLoop::State::end_requests() {
  engine.drain();
  try {
    engine.cancel_all();
    engine.step();
  } catch (const std::exception& e) {
    base::log_error("the engine could not end its requests: {}", e.what());
  }
}

void EngineLoop::State::watch() {
  std::unique_lock lock(mutex);
  const auto pause = std::chrono::duration<double>(options.stall_seconds / 4);
  while (!is_stopping && !has_ended) {
    wake.wait_for(lock, pause);
    if (is_stopping || has_ended || !engine.has_work()) continue;
    const EngineStats stats = engine.stats();
    if (stats.last_step_age_seconds < options.stall_seconds) continue;
    const std::string state = engine.describe();
    lock.unlock();
    if (options.on_stall) {
      options.on_stall(state);
    } else {
      base::log_error("no step for {:.0f} s; the process ends. {}", stats.last_step_age_seconds, state);
      std::_Exit(70);
    }
    lock.lock();
    return;
  }
}

EngineLoop::EngineLoop(Engine& engine, const LoopOptions& options) : state_(std::make_unique<State>(engine, options)) {
  state_->thread = std::thread([s = state_.get()] { s->run(); });
  if (options.stall_seconds > 0) state_->watchdog = std::thread([s = state_.get()] { s->watch(); });
}

EngineLoop::~EngineLoop() { stop(); }

RequestId EngineLoop::submit(Request request) {
  const RequestId id = state_->engine.submit(std::move(request));
  state_->wake_up();
  return id;
}

void EngineLoop::cancel(RequestId id) {
  state_->engine.cancel(id);
  state_->wake_up();
}

bool EngineLoop::is_alive(double seconds) const {
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->has_ended || !state_->error.empty()) return false;
  }
  return !state_->engine.has_work() || state_->engine.stats().last_step_age_seconds < seconds;
}

std::string EngineLoop::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

bool EngineLoop::drain(double seconds) {
  state_->engine.drain();
  state_->wake_up();
  bool all = false;
  {
    std::unique_lock lock(state_->mutex);
    all = state_->idle.wait_for(lock, std::chrono::duration<double>(seconds),
                                [&] { return !state_->engine.has_work() || state_->has_ended; });
  }
  stop();
  return all && error().empty();
}

void EngineLoop::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_stopping = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
  if (state_->watchdog.joinable()) state_->watchdog.join();
}

}  // namespace sinter::engine
