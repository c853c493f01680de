// Decides every step on the device: clipping, the loss scale, and whether loss and gradient norm allow its update
// (values that are not finite, outliers by z-score). The rules are kernels/step_control.h; this holds their state for a
// run.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/table.h"
#include "spec/recipe.h"

namespace sinter::train {

// What became of a step, from its record.
struct StepOutcome {
  double loss = 0, norm = 0;
  double loss_scale = 1;  // that this step's loss was multiplied by
  kernels::StepVerdict verdict = kernels::kStepApplied;
  int64_t updates = 0;  // applied so far
  double loss_z = 0, norm_z = 0;

  bool is_applied() const { return verdict == kernels::kStepApplied; }
  bool is_stop() const { return verdict >= kernels::kStepStoppedNan; }
};
StepOutcome read_outcome(const std::vector<float>& record);

class DivergenceGuard {
 public:
  // Scales the loss when the compute format is f16.
  DivergenceGuard(const spec::Recipe& recipe, core::Device device);

  // Enqueues the decision on a step. loss_sum (1): over its supervised tokens; norm_squared (1): of the gradient of the
  // scaled mean loss; record: (kRecordSize).
  void decide(const core::Tensor& loss_sum, double num_supervised, const core::Tensor& norm_squared,
              const core::Tensor& record);
  const core::Tensor& control() const { return control_; }  // (kControlSize), for the optimizer
  core::Tensor loss_scale() const { return state_.slice(kernels::kStateScale, 1); }  // (1)
  // Why a step was not applied, for people.
  std::string reason(const StepOutcome& outcome) const;

  // Everything that later decisions depend on, for checkpoints; both wait for the device.
  struct State {
    std::vector<double> window;      // skips in a row, losses, then norms of the last good steps, oldest first
    std::vector<double> loss_scale;  // the scale, good steps since it changed
    int64_t updates = 0;
  };
  State state() const;
  void set_state(const State& state);
  size_t bytes() const { return state_.bytes() + control_.bytes(); }

 private:
  const spec::GuardRecipe recipe_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  kernels::StepRule rule_;
  core::Tensor state_, control_;
};

}  // namespace sinter::train
