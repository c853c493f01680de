// GRPO and its kin over batches of sampled answers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/objective.h"
#include "tune/objectives/policy.h"
#include "tune/run/rollouts.h"

namespace sinter::tune {

class GroupPolicy : public train::Objective {
 public:
  explicit GroupPolicy(const GroupOptions& options) : options_(options) { check_group_options(options); }
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // answers
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  const GroupOptions options_;
  struct Sums {
    double reward = 0, tokens = 0, finished = 0, kl = 0, clipped = 0, ratio_error = 0, answers = 0;
  } sums_;
};

}  // namespace sinter::tune
