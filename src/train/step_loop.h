// Enqueues whole steps and reads what became of them: passes, decision (guard.h), update. Knows no files and prints
// nothing.
#pragma once
#include <cstdint>
#include <deque>
#include <vector>

#include "core/host_copy.h"
#include "parallel/mesh.h"
#include "train/chunks.h"
#include "train/guard.h"
#include "train/noise_scale.h"
#include "train/optimizer.h"
#include "train/run_plan.h"
#include "train/step.h"

namespace sinter::train {

// A step whose record has been read.
struct EndedStep {
  int64_t step = 0;    // from 0
  int64_t tokens = 0;  // seen in it, all ranks
  double lr_factor = 0;
  double seconds = 0;
  StepOutcome outcome;
  StepResult result;
};

class StepLoop {
 public:
  // Keeps references to plan, chunks and mesh.
  StepLoop(const RunPlan& plan, const Chunks& chunks, const parallel::Mesh& mesh);

  // Steps that may be enqueued while the record of the one before is still on its way.
  int64_t steps_ahead() const { return plan_.device.kind == core::DeviceKind::cpu ? 0 : 1; }
  // Enqueues a whole step. What becomes of it is decided on the device, so nothing here waits for a result.
  void begin(const std::vector<data::MicroBatch>& batches, int64_t step);
  bool is_empty() const { return in_flight_.empty(); }  // no step's record is to be read
  // Reads the record of the oldest step. A step that was applied enters the noise scale.
  EndedStep end();
  // The clock of the next step's time begins now.
  void restart_clock();
  // Forgets what is in flight: after a stop the device ignores it too.
  void drop() { in_flight_.clear(); }

  StepRunner& runner() { return runner_; }
  const StepRunner& runner() const { return runner_; }
  const Optimizer& optimizer() const { return optimizer_; }
  Optimizer& optimizer() { return optimizer_; }
  DivergenceGuard& guard() { return guard_; }
  NoiseScale& noise_scale() { return noise_scale_; }

 private:
  struct Begun {
    int64_t step = 0;  // from 0
    int64_t tokens = 0;
    double lr_factor = 0;
    StepCounts counts;
  };
  const RunPlan& plan_;
  core::DeviceRuntime& device_;
  models::ParameterStore& store_;
  Optimizer optimizer_;
  StepRunner runner_;
  DivergenceGuard guard_;
  NoiseScale noise_scale_;
  core::Tensor squares_;  // (1) f32
  std::deque<Begun> in_flight_;
  std::vector<core::HostCopy> records_;
  double began_ = 0;
};

}  // namespace sinter::train
