// Answers sampled by the engine over the weights that are trained, and what they earn: the batches of grpo and ppo.
#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/sample_order.h"
#include "engine/request.h"
#include "models/open_model.h"
#include "parallel/mesh.h"
#include "spec/tune_recipe.h"
#include "tokenizer/tokenizer.h"
#include "train/batch_source.h"
#include "tune/data/render.h"
#include "tune/rewards/reward.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {

// An answer as it was sampled, and what is learned from it. Vectors have an element for each token.
struct Answer {
  size_t prompt = 0;  // among the run's prompts
  std::vector<int32_t> tokens;
  std::vector<double> logprobs;
  bool is_finished = false;
  double reward = 0, advantage = 0;
  std::vector<double> reference;                    // log-probabilities by the reference, where the run has one
  std::vector<double> values, advantages, returns;  // ppo
};

// One answer in a micro-batch.
struct AnswerPlace {
  int64_t first = 0;  // place of its first target
  Answer answer;
  bool is_learned = true;  // else its tokens count for nothing
};
struct AnswerBatch : data::BatchExtra {
  std::vector<AnswerPlace> answers;
  int64_t step_answers = 0, step_tokens = 0;  // of the whole step, all ranks
};

// A set of answers feeds tune.iterations steps. Every answer's random numbers are those of (seed, set, prompt, place in
// the group): the same on any number of ranks.
class RolloutBatches : public train::BatchSource {
 public:
  RolloutBatches(std::vector<Prompt> prompts, const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& model,
                 const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);

  void attach(const models::Transformer& transformer) override;
  int64_t micro_batches() const;
  std::vector<data::MicroBatch> step(int64_t step) override;
  const std::vector<data::MicroBatch>& validation() const override { return validation_; }
  int64_t tokens_at(int64_t step) const override;
  // The answers of a set that later steps learn from too, of all ranks. Collective.
  std::string state() const override;
  void set_state(const std::string& text) override;

 protected:
  // What follows from this rank's rewards: advantages, values. `rewards` (answers, functions), NaN where a function
  // gave none. Collective.
  virtual void judge(std::vector<Answer>& answers, const std::vector<double>& rewards, int64_t functions) = 0;

  // Answers [begin, end) laid out as training sees them. `firsts` receives the places of their first targets.
  data::MicroBatch lay_out(size_t begin, size_t end, std::vector<int64_t>& firsts) const;
  // visit(batch, first answer, places of first targets) for every micro-batch of this rank's answers.
  template <class Visit>
  void for_batches(Visit visit) const {
    const auto B = static_cast<size_t>(recipe_.base.train.micro_batch);
    for (size_t begin = 0; begin < answers_.size(); begin += B) {
      std::vector<int64_t> firsts;
      const data::MicroBatch batch = lay_out(begin, std::min(answers_.size(), begin + B), firsts);
      visit(batch, begin, firsts);
    }
  }
  const models::Transformer& transformer() const { return *transformer_; }
  const spec::TuneRecipe& recipe() const { return recipe_; }
  const parallel::Mesh& mesh() const { return mesh_; }

 private:
  bool is_learned(const Answer& answer) const { return answer.is_finished || !recipe_.tune.skip_unfinished; }
  int64_t answers_of_a_rank() const { return recipe_.tune.prompts * recipe_.tune.group / mesh_.data().size(); }
  std::vector<size_t> prompts_of(int64_t set) const;
  void sample(int64_t set);
  void run_engine(std::vector<engine::Request> requests, int64_t tokens);
  std::vector<double> score();
  void refer();

  const std::vector<Prompt> prompts_;
  const tokenizer::Tokenizer& tokenizer_;
  const spec::TuneRecipe recipe_;
  const parallel::Mesh& mesh_;
  const std::vector<int32_t> stop_tokens_;
  const data::SampleOrder order_;
  std::vector<std::unique_ptr<Reward>> rewards_;
  const models::Transformer* transformer_ = nullptr;
  models::OpenModel reference_;  // where the reference is another model than the one with its adapter off
  int64_t set_ = -1;             // whose answers are here
  std::vector<Answer> answers_;
  std::vector<data::MicroBatch> validation_;
};

// The prompts of data.sources that leave room for an answer.
std::vector<Prompt> read_prompts(const Renderer& renderer, const spec::TuneRecipe& recipe);

// What the plans of verbs with rollouts have in common: checks, then steps, source and what is told of them. `make`
// gets the prompts. Returns the sizes for end_plan().
struct RolloutParts {
  std::vector<Prompt> prompts;
  const tokenizer::Tokenizer& tokenizer;
  const spec::ModelSpec& model;
};
BatchSizes plan_rollouts(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh,
                         const std::function<std::unique_ptr<RolloutBatches>(RolloutParts parts)>& make);

}  // namespace sinter::tune
