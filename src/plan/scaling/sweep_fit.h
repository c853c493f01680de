// Fits of a user's own training sweep: the parametric law L = E + A/N^alpha + B/D^beta and IsoFLOP parabolas, both with
// bootstrap intervals.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/scaling/scaling.h"

namespace sinter::plan {

struct SweepRow {
  double parameters = 0, tokens = 0, loss = 0;
  double flops() const { return 6 * parameters * tokens; }
};
// CSV (or tabs) with a header naming parameters (params, n), loss and two of tokens (d), flops (c), parameters.
// Throws Error naming the file, the line and the column.
std::vector<SweepRow> parse_sweep(const std::string& text, const std::string& origin);

struct Interval {
  double low = 0, high = 0;  // 2.5 % and 97.5 % of the bootstrap
};

struct ParametricFit {
  ScalingLaw law;  // name "sweep"
  Interval E, A, B, alpha, beta;
  double exponent = 0;  // N* ~ C^exponent, beta / (alpha + beta)
  Interval exponent_interval;
  double huber_loss = 0;  // objective at the minimum
  double rms_error = 0;   // of log loss
};
// Huber loss (delta 1e-3) on log L, started from a grid of exponents, `resamples` bootstraps of the rows.
// Throws UsageError with fewer than 6 rows or when sizes or tokens do not vary.
ParametricFit fit_parametric(const std::vector<SweepRow>& rows, int resamples = 200, uint64_t seed = 0);

struct IsoFlopCurve {
  double flops = 0;  // of the group
  double best_parameters = 0, best_tokens = 0, best_loss = 0;
  double a = 0, b = 0, c = 0;  // loss = a x^2 + b x + c with x = log10 N
  std::vector<SweepRow> rows;
};
struct IsoFlopFit {
  std::vector<IsoFlopCurve> curves;
  std::vector<double> left_out;    // budgets without a minimum inside their rows
  double scale = 0, exponent = 0;  // N* = scale * C^exponent
  Interval exponent_interval;
  Optimum at(double flops) const;  // loss left 0
};
// Groups rows whose budgets agree within 10 %, fits a parabola in log N to each, then a power law through the minima.
// Throws UsageError unless two groups have three or more sizes with a minimum among them.
IsoFlopFit fit_isoflop(const std::vector<SweepRow>& rows, int resamples = 200, uint64_t seed = 0);

}  // namespace sinter::plan
