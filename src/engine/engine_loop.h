// Runs an engine's steps on a thread of its own, with a heartbeat that others can watch.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"

namespace sinter::engine {

struct LoopOptions {
  // A step that takes longer than this: the watchdog calls on_stall. 0: no watchdog.
  double stall_seconds = 0;
  // Gets the engine's state in lines. Default: logs it and ends the process with status 70, so that whoever started it
  // starts it again.
  std::function<void(const std::string& state)> on_stall;
};

class EngineLoop {
 public:
  // The engine must outlive the loop, and nobody else may step it meanwhile.
  explicit EngineLoop(Engine& engine, const LoopOptions& options = {});
  ~EngineLoop();  // stop()
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Any thread. As Engine's, and wakes the loop.
  RequestId submit(Request request);
  void cancel(RequestId id);

  // Whether steps come: idle, or the last step ended less than `seconds` ago. For readiness.
  bool is_alive(double seconds) const;
  // What ended the loop, "" while it runs: an error of the model ends it.
  std::string error() const;
  // No more requests; waits until those that are there have ended, at most `seconds`, then cancels the rest. Any
  // thread, once; true: all had ended.
  bool drain(double seconds);
  // Ends the thread after the step that runs; requests that are left end with FinishReason::cancelled.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sinter::engine
