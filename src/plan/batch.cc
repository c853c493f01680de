#include "plan/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "base/text.h"

namespace sinter::plan {

double CriticalBatchLaw::at(double loss) const { return scale * std::pow(loss / reference, -exponent); }

const std::vector<CriticalBatchLaw>& critical_batch_laws() {
  static const std::vector<CriticalBatchLaw> laws{
      {"minimax-01", "fit to MiniMax-01's schedule: 16M (L / 2.22)^-6.11", 16e6, 2.22, 6.11},
      {"kaplan", "Kaplan et al. 2020: 2.1e8 L^-4.8", 2.1e8, 1.0, 4.8},
  };
  return laws;
}

const CriticalBatchLaw& critical_batch_law(std::string_view name) {
  std::vector<std::string> names;
  for (const CriticalBatchLaw& law : critical_batch_laws()) {
    if (law.name == name) return law;
    names.emplace_back(law.name);
  }
  base::fail_usage("unknown critical batch law '{}'; known: {}{}", name, fmt::join(names, ", "),
                   base::did_you_mean(name, names));
}

BatchCost cost_of_batch(double batch_tokens, double critical_tokens) {
  return {1 + critical_tokens / batch_tokens, 1 + batch_tokens / critical_tokens};
}

int64_t count_steps(const std::vector<BatchStage>& stages, double total_tokens) {
  if (stages.empty()) base::fail_usage("a batch schedule needs at least one stage, such as 4M@0");
  if (stages.front().from_tokens != 0) {
    base::fail_usage("the batch schedule starts at {} tokens; its first stage must start at 0",
                     stages.front().from_tokens);
  }
  double steps = 0;
  for (size_t i = 0; i < stages.size(); ++i) {
    const BatchStage& stage = stages[i];
    const double end = i + 1 < stages.size() ? stages[i + 1].from_tokens : total_tokens;
    if (!(stage.batch_tokens >= 1)) base::fail_usage("a batch of {} tokens; expected at least 1", stage.batch_tokens);
    if (!(end > stage.from_tokens)) {
      base::fail_usage(
          "stage {} of the batch schedule runs from {} to {} tokens; starts must rise and lie before the end", i + 1,
          base::format_count(stage.from_tokens), base::format_count(end));
    }
    steps += (end - stage.from_tokens) / stage.batch_tokens;  // a step may straddle two stages
  }
  return static_cast<int64_t>(std::ceil(steps - 1e-9));
}

double parse_count(const std::string& text, std::string_view what) {
  char* end = nullptr;
  double value = std::strtod(text.c_str(), &end);
  std::string suffix(end);
  double unit = 0;
  if (suffix.empty()) unit = 1;
  if (suffix == "K" || suffix == "k") unit = 1e3;
  if (suffix == "M" || suffix == "m") unit = 1e6;
  if (suffix == "B" || suffix == "b" || suffix == "G" || suffix == "g") unit = 1e9;
  if (suffix == "T" || suffix == "t") unit = 1e12;
  if (suffix == "P" || suffix == "p") unit = 1e15;
  if (end == text.c_str() || unit == 0 || !std::isfinite(value) || value <= 0) {
    base::fail_usage("{} is '{}'; expected a positive number such as 4096, 300B, 15.6T or 2e12", what, text);
  }
  return value * unit;
}

std::vector<BatchStage> parse_batch_schedule(const std::string& text) {
  std::vector<BatchStage> stages;
  for (size_t begin = 0; begin <= text.size();) {
    size_t end = std::min(text.find(',', begin), text.size());
    std::string stage = text.substr(begin, end - begin);
    size_t at = stage.find('@');
    std::string from = at == std::string::npos ? (stages.empty() ? "0" : "") : stage.substr(at + 1);
    stages.push_back({from == "0" ? 0 : parse_count(from, "a batch stage's start"),
                      parse_count(stage.substr(0, at), "a stage's batch")});
    begin = end + 1;
  }
  return stages;
}

std::vector<BatchStage> make_batch_schedule(const ScalingLaw& law, const CriticalBatchLaw& critical, double parameters,
                                            double total_tokens, double first_batch, double largest_batch) {
  std::vector<BatchStage> stages{{0, first_batch}};
  for (double batch = 2 * first_batch; batch <= largest_batch * (1 + 1e-9); batch *= 2) {
    // The loss at which this batch is the critical one, and the token count at which the model gets there.
    double loss = critical.reference * std::pow(batch / critical.scale, -1 / critical.exponent);
    double from = tokens_for_loss(law, parameters, loss);
    if (!(from < total_tokens)) break;
    if (from <= stages.back().from_tokens + batch) {  // passed almost at once: start with the larger batch
      stages.back().batch_tokens = batch;
    } else {
      stages.push_back({from, batch});
    }
  }
  return stages;
}

}  // namespace sinter::plan
