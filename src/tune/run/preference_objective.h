// Preferences and labels as objectives of a run: DPO and its family over pairs, KTO over single answers.
#pragma once
#include <cstdint>
#include <vector>

#include "train/objective.h"
#include "tune/objectives/preference.h"

namespace sinter::tune {

// One answer in a micro-batch: the places of its targets, and what the reference gives them.
struct AnswerSpan {
  int64_t first = 0, count = 0;
  int64_t prompt_first = 0;  // of the prompt's targets, which stand right before; first where it has none
  double reference = 0;      // sum of the log-probabilities
};
struct PairBatch : data::BatchExtra {
  struct Pair {
    AnswerSpan chosen, rejected;
    double margin = 0;  // of reward models
  };
  std::vector<Pair> pairs;
  // Of the whole step, all ranks: what the mean negative log-likelihood is taken over.
  int64_t step_pairs = 0, step_nll_tokens = 0;
};

class PairObjective : public train::Objective {
 public:
  explicit PairObjective(const PairOptions& options) : options_(options) { check_pair_options(options); }
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // pairs
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  struct Sums {
    double pairs = 0, right = 0, chosen = 0, rejected = 0;
  };
  const PairOptions options_;
  Sums sums_, validation_;
  bool is_validating_ = false;
};

struct LabelledBatch : data::BatchExtra {
  struct Answer {
    AnswerSpan span, mismatched;  // mismatched: another prompt's answer behind this one's prompt; count 0: none
    bool is_desirable = true;
  };
  std::vector<Answer> answers;
};

class KtoObjective : public train::Objective {
 public:
  explicit KtoObjective(const KtoOptions& options) : options_(options) {}
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // answers
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  struct Sums {
    double wanted = 0, unwanted = 0, reward_wanted = 0, reward_unwanted = 0, kl = 0, batches = 0;
  };
  const KtoOptions options_;
  Sums sums_;
};

}  // namespace sinter::tune
