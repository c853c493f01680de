// Batch size: the critical batch for a loss, what a batch away from it costs, and schedules that grow it.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "plan/scaling/scaling.h"

namespace sinter::plan {

// B_crit(L) = scale * (L / reference)^-exponent tokens
struct CriticalBatchLaw {
  std::string_view name, source;
  double scale, reference, exponent;
  double at(double loss) const;
};
// minimax-01 (default) and kaplan
const std::vector<CriticalBatchLaw>& critical_batch_laws();
const CriticalBatchLaw& critical_batch_law(std::string_view name);

// McCandlish et al. 2018: (S / S_min - 1)(E / E_min - 1) = 1 with E = batch * S and B_crit = E_min / S_min.
struct BatchCost {
  double steps_ratio = 0;   // steps over the fewest possible
  double tokens_ratio = 0;  // tokens over the fewest possible
};
BatchCost cost_of_batch(double batch_tokens, double critical_tokens);

struct BatchStage {
  double from_tokens = 0;  // position in the run where this batch starts
  double batch_tokens = 0;
};
// Optimizer steps of a schedule over `total_tokens`. Throws UsageError unless stages start at 0, rise and lie inside.
int64_t count_steps(const std::vector<BatchStage>& stages, double total_tokens);
// "16M@0,32M@69B,64M@790B,128M@4.7T"
std::vector<BatchStage> parse_batch_schedule(const std::string& text);
// Doubles the batch each time the predicted critical batch has grown to it, from `first_batch` on.
std::vector<BatchStage> make_batch_schedule(const ScalingLaw& law, const CriticalBatchLaw& critical, double parameters,
                                            double total_tokens, double first_batch, double largest_batch);

// "15.6T", "300B", "2e12", "32K": a count with a decimal suffix. Throws UsageError naming `what`.
double parse_count(const std::string& text, std::string_view what);

}  // namespace sinter::plan
