// Constants of the time model for one machine, from measured training steps split by cause.
#pragma once
#include <vector>

#include "plan/hardware.h"
#include "spec/model_spec.h"

namespace sinter::plan {

// One step of one micro-batch without parallelism, in seconds by cause.
struct MeasuredStep {
  spec::ModelSpec model;
  int64_t sequences = 1, seq_len = 128;
  double matmul = 0, attention = 0, elementwise = 0, optimizer = 0;
  double seconds() const { return matmul + attention + elementwise + optimizer; }
};

// The shares of `device`'s peak and bandwidth that reproduce the steps best: products and element-wise work by least
// squares of relative errors in rate and fixed cost, attention by its sum. Throws Error without two steps.
TrainingShares fit_training_shares(const Device& device, Format format, const std::vector<MeasuredStep>& steps);

// What the time model says about such a step on a device with these shares.
double predict_step_seconds(const Device& device, Format format, const MeasuredStep& step);

}  // namespace sinter::plan
