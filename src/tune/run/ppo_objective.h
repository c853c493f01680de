// PPO over batches of sampled answers: a clipped policy loss, and a clipped loss of the values that a head beside the
// language model's tells.
#pragma once
#include <vector>

#include "train/objective.h"
#include "tune/run/rollouts.h"
#include "tune/run/scalar_head.h"

namespace sinter::tune {

inline const ScalarHead kValueHead{"v_head.weight", "v_head.bias"};

struct PpoOptions {
  double clip_low = 0.2, clip_high = 0.2, value_clip = 0.2, value_weight = 0.1;
  double kl_in_loss = 0;  // weight of k3 beside each token's loss; 0: the penalty is in the rewards
};

// Mean over all tokens of the step of: policy loss + value_weight x value loss (+ KL).
class ValuePolicy : public train::Objective {
 public:
  explicit ValuePolicy(const PpoOptions& options) : options_(options) {}
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // tokens of answers
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  struct Sums {
    double answers = 0, reward = 0, finished = 0, tokens = 0;
    double kl = 0, clipped = 0, ratio_error = 0, policy = 0, value = 0, value_clipped = 0;
  };
  struct Terms;
  void add(const AnswerPlace& place, std::span<const float> values, Terms& terms, bool learns);

  const PpoOptions options_;
  Sums sums_;
};

}  // namespace sinter::tune
