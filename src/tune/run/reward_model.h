// Reward models: the trunk of a language model and one row of weights that turns the last hidden state of a text into
// its reward, in the form of a Hugging Face sequence classifier with one label.
#pragma once
#include <string>
#include <vector>

#include "models/open_model.h"
#include "train/objective.h"

namespace sinter::tune {

inline constexpr const char* kScoreName = "score.weight";  // (1, C)

// The tensors of a reward model, without the language model's head.
std::vector<spec::Parameter> make_reward_table(spec::ModelSpec spec);
// `model` as transformers run it: no head of its own.
spec::ModelSpec reward_trunk(spec::ModelSpec model);
// From a language model's folder, whose head is left out and a score is drawn, or from a reward model's.
void load_reward_weights(models::ParameterStore& store, const spec::ModelSpec& model, const std::string& folder,
                         uint64_t seed);
// config.json of such a folder.
std::string reward_config(const spec::ModelSpec& model, const std::string& dtype, int32_t pad_token);

// Bradley-Terry over the pairs of a PairBatch: the reward of an answer is read at its last token.
class RewardObjective : public train::Objective {
 public:
  void forward(const train::ObjectivePass& pass) override;
  double count(const data::MicroBatch& batch) const override;  // pairs
  bool reads_values() const override { return true; }
  std::vector<Metric> take_metrics() override;

 private:
  struct Sums {
    double pairs = 0, right = 0, margin = 0;
  };
  Sums sums_, validation_;
  bool is_validating_ = false;
};

}  // namespace sinter::tune
