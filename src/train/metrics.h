// What a run tells: a line of JSON per step, a progress line, and the loss as a plot at the end.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"

namespace sinter::train {

struct StepMetrics {
  int64_t step = 0;    // steps done, this one included
  int64_t tokens = 0;  // seen so far, all ranks
  double loss = 0, grad_norm = 0, lr = 0;
  double seconds = 0;            // of this step
  double tokens_per_second = 0;  // of this step, all ranks
  double flops_share = 0;        // of the measured matrix-product rate of all ranks
  std::optional<double> noise_scale_tokens, balance_loss, mtp_loss, validation_loss, loss_scale;
  std::vector<std::pair<std::string, double>> objective;  // what the objective tells besides its loss
  std::vector<std::pair<std::string, double>> tasks;      // scores on eval.tasks
  std::optional<double> checkpoint_seconds;               // training stood still for checkpoints since the line before
  bool is_skipped = false;
};

// metrics.jsonl: one object per line, appended and flushed.
class MetricsFile {
 public:
  // Keeps the lines of steps up to `resumed_step` that are there (0: starts anew).
  MetricsFile(std::string path, int64_t resumed_step);
  // A line that cannot be written is left out with a warning: no step is worth less for it.
  void append(const StepMetrics& metrics);
  // Losses of the steps in the file, for the plot.
  const std::vector<double>& losses() const { return losses_; }

 private:
  std::string path_;
  std::vector<double> losses_;
  bool is_failing_ = false;
};

// "2.3517", or all digits where places is -1; "NaN", "infinite".
std::string number_text(double value, int places = 4);
std::string format_flops(double flops);  // "91.7 GFLOP/s"
// "step 120/1000  loss 3.2140  12.30K tok/s  41% of 1.20 TFLOP/s  2m 10s left"
std::string progress_text(const StepMetrics& metrics, int64_t steps, double peak_flops, double seconds_left);

}  // namespace sinter::train
