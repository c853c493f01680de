// Constants of the time model for one machine, from measured training steps split by cause.
#pragma once
#include <vector>

#include "plan/hardware.h"
#include "spec/model_spec.h"

namespace sinter::plan {

// One optimizer step without parallelism, in seconds by cause.
struct MeasuredStep {
  spec::ModelSpec model;
  int64_t sequences = 1, seq_len = 128;  // of a micro-batch
  int64_t micro_batches = 1;
  double matmul = 0, attention = 0, elementwise = 0, loss = 0, optimizer = 0;
  double seconds() const { return matmul + attention + elementwise + loss + optimizer; }
};

// The shares of `device`'s peak and bandwidth that reproduce the steps best: every cause is a sum of rates and fixed
// costs (products: FLOPs, operand bytes, calls), fitted by least squares of relative errors with no negative constant.
// Throws Error without two steps.
TrainingShares fit_training_shares(const DeviceSpec& device, MatrixFormat format,
                                   const std::vector<MeasuredStep>& steps);

// What the time model says about such a step on a device with these shares.
MeasuredStep predict_step(const DeviceSpec& device, MatrixFormat format, const MeasuredStep& step);

// x >= 0 with sum over columns of x[c] * columns[c][row] near 1 in every row: least squares over all choices of
// columns.
std::vector<double> fit_nonnegative(const std::vector<std::vector<double>>& columns);

}  // namespace sinter::plan
