// GRPO and its kin over batches of sampled answers.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/objective.h"
#include "tune/objectives/policy.h"

namespace sinter::tune {

// One answer in a micro-batch.
struct AnswerPlace {
  int64_t first = 0;                   // place of its first target
  std::vector<double> old, reference;  // log-probabilities of its tokens; reference may be empty
  double advantage = 0, reward = 0;
  bool is_finished = true;
};
struct AnswerBatch : data::BatchExtra {
  std::vector<AnswerPlace> answers;
  int64_t step_answers = 0, step_tokens = 0;  // of the whole step, all ranks
};

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
