// Reward models: the trunk of a language model and one row of weights that turns the last hidden state of a text into
// its reward, in the form of a Hugging Face sequence classifier with one label.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "io/tensor_folder.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"
#include "train/objective.h"
#include "tune/rewards/reward.h"
#include "tune/run/scalar_head.h"

namespace sinter::tune {

inline const ScalarHead kScore{"score.weight", ""};  // (1, C)

// `model` as transformers run it: no head of its own.
spec::ModelSpec reward_trunk(spec::ModelSpec model);
// The tensors of a reward model whose trunk is this.
std::vector<spec::ParameterSpec> make_reward_table(const spec::ModelSpec& trunk);
// The trunk of a sequence classifier's folder, from its config.json. Throws base::Error for another architecture.
spec::ModelSpec read_classifier_spec(const std::string& folder);
// A folder of a reward model, or an adapter's of one with its base.
models::OpenModel open_reward_model(const std::string& folder, const models::StoreOptions& options);
// Its score at the last token of prompt and answer, a batch of `batch_tokens` at a time. The tokens must be those of
// `tokenizer`.
std::unique_ptr<Reward> make_model_reward(const std::string& folder, const models::StoreOptions& options,
                                          const tokenizer::Tokenizer& tokenizer, int64_t batch_tokens);
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
