// What a run tells while it goes: lines of metrics, the progress line, samples, and at the end its memory.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "base/log.h"
#include "parallel/mesh.h"
#include "train/metrics.h"
#include "train/run_plan.h"
#include "train/step_loop.h"

namespace sinter::train {

class Reporter {
 public:
  // Shows what the model says after `step`. May be empty.
  using Sample = std::function<void(int64_t step)>;
  // Of every rank; only the first one tells anything. Keeps references to plan and mesh. `bytes_before`: what the
  // device held before the run.
  Reporter(const RunPlan& plan, const parallel::Mesh& mesh, Sample sample, size_t bytes_before);

  // Before the first step: metrics of steps up to `resumed_step` are kept; measures the machine's peak.
  void start(int64_t resumed_step);
  // A step's metrics, flops_share and checkpoint_seconds filled in here.
  void report(StepMetrics metrics);
  // Training stood still for a checkpoint.
  void add_checkpoint_seconds(double seconds) { checkpoint_seconds_ += seconds; }
  // What is printed next begins a line of its own.
  void break_line() { progress_.finish(); }
  // Runs what uses memory that is no part of the plan, and prints.
  void stand_aside(const std::function<void()>& work);
  // At the end, of all ranks: memory against the plan, and how evenly they worked.
  void tell_offload(const StepRunner& runner);  // how a step and its copies went together
  void finish(const StepRunner& runner);
  const MetricsFile* metrics() const { return metrics_.get(); }

 private:
  void show_samples(int64_t step);
  void note_peak();
  void tell_balance();
  const RunPlan& plan_;
  const parallel::Mesh& mesh_;
  const Sample sample_;
  core::DeviceRuntime& device_;
  const size_t bytes_before_;
  size_t peak_bytes_ = 0;
  std::unique_ptr<MetricsFile> metrics_;
  base::ProgressLine progress_;
  double peak_flops_ = 1, step_seconds_ = 0, checkpoint_seconds_ = 0;
  std::chrono::steady_clock::time_point began_;
  double waited_before_ = 0;
  double all_seconds_ = 0;  // of the steps timed
  int64_t steps_timed_ = 0;
};

}  // namespace sinter::train
