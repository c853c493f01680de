// `sinter plan check`: predicts every published row and prints how far off the planner is, by source and quantity.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "plan/check/rows.h"
#include "plan/time.h"

namespace sinter::plan {

// One number of one row, measured and predicted.
struct CheckedNumber {
  std::string row, source, quantity;
  double measured = 0, predicted = 0;
  double error() const { return predicted / measured - 1; }
};

struct ErrorSummary {
  std::string source, quantity;
  int64_t count = 0;
  double mean = 0, median = 0, p90 = 0, bias = 0;  // of |predicted / measured - 1|; bias keeps the sign
  CheckedNumber worst;
};

// Sweeps hold alternatives for one model, machine and batch: how much slower the planner's choice is than the best.
struct RegretSummary {
  std::string source;
  int64_t groups = 0, exact = 0;
  double mean = 0, median = 0, p90 = 0, worst = 0;
  std::string worst_group;
};

// Sweeps also hold runs that failed, out of memory among other reasons: does the memory model tell them apart?
struct FitSummary {
  std::string source;
  int64_t ran = 0, ran_predicted = 0;        // runs that finished; of them predicted to fit
  int64_t failed = 0, failed_predicted = 0;  // runs that did not; of them predicted not to fit
};

struct CheckReport {
  std::vector<CheckedNumber> comparisons;
  std::vector<ErrorSummary> summaries;
  std::vector<RegretSummary> regrets;
  std::vector<FitSummary> fits;
  int64_t num_rows = 0, num_predicted = 0;
  std::vector<std::pair<std::string, int64_t>> unpredicted;  // reason, rows
};

CheckReport check_rows(const std::vector<CheckRow>& rows);

// Seconds of a step as measured, from a step time, a rate of tokens or a utilisation; nullopt when the row has none.
std::optional<double> measured_step(const CheckRow& row);
// A row whose micro-batch or interleaving is not published gets the one the planner finds fastest.
spec::ParallelSpec completed_layout(const CheckRow& row, const Efficiency& efficiency);
double predicted_step(const CheckRow& row, const Efficiency& efficiency);

// The FLOP convention a source uses, by its name in plan/flops.h; empty when it does not say.
std::string convention_of(const CheckRow& row, bool hardware);
// FLOPs per token of the row under a named convention.
double convention_flops(const CheckRow& row, const std::string& convention);

std::string format_report(const CheckReport& report);
nlohmann::json report_json(const CheckReport& report);

}  // namespace sinter::plan
