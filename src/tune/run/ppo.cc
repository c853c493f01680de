// PPO: sampled answers, held against values that a head beside the language model's tells of every token.
#include <cmath>

#include "base/error.h"
#include "comm/together.h"
#include "tune/objectives/policy.h"
#include "tune/run/ppo_objective.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

class ValueBatches final : public RolloutBatches {
 public:
  using RolloutBatches::RolloutBatches;

 private:
  void judge(std::vector<Answer>& answers, const std::vector<double>&, int64_t) override {
    const spec::TuneSection& tune = recipe().tune;
    for_batches([&](const data::MicroBatch& batch, size_t begin, const std::vector<int64_t>& firsts) {
      const std::vector<float> values = token_scalars(kValueHead, transformer(), batch);
      for (size_t i = 0; i < firsts.size(); ++i) {
        Answer& answer = answers[begin + i];
        const auto from = values.begin() + firsts[i];
        answer.values.assign(from, from + static_cast<ptrdiff_t>(answer.tokens.size()));
      }
    });
    std::vector<double> rewards;
    for (Answer& answer : answers) {
      const size_t n = answer.tokens.size();
      rewards.assign(n, 0.0);
      for (size_t t = 0; tune.kl > 0 && !tune.kl_in_loss && t < n; ++t)
        rewards[t] = -tune.kl * kl_estimate(KlEstimate::k1, answer.logprobs[t], answer.reference[t]);
      rewards.back() += answer.reward;
      answer.advantages.assign(n, 0.0);
      answer.returns.assign(n, 0.0);
      estimate_advantages(rewards, answer.values, tune.discount, tune.gae_lambda, answer.advantages, answer.returns);
    }
    whiten_advantages(answers);
  }

  // Mean 0 and variance 1 over the tokens of all ranks' answers.
  void whiten_advantages(std::vector<Answer>& answers) {
    auto sum_of = [&](auto of) {
      double sum = 0;
      for (const Answer& answer : answers) {
        for (double a : answer.advantages) sum += of(a);
      }
      return mesh().data().sum(sum);
    };
    const double n = sum_of([](double) { return 1.0; });
    if (n < 2) return;
    const double mean = sum_of([](double a) { return a; }) / n;
    const double variance = sum_of([&](double a) { return (a - mean) * (a - mean); }) / (n - 1);
    for (Answer& answer : answers) {
      for (double& a : answer.advantages) a = (a - mean) / std::sqrt(variance + 1e-8);
    }
  }
};

}  // namespace

train::RunPlan make_ppo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    plan = begin_plan(recipe, mesh);
    const BatchSizes sizes = plan_rollouts(plan, recipe, mesh, [&](RolloutParts parts) {
      return std::make_unique<ValueBatches>(std::move(parts.prompts), parts.tokenizer, parts.model, recipe, mesh);
    });
    const spec::TuneSection& tune = recipe.tune;
    plan.objective = std::make_shared<ValuePolicy>(PpoOptions{.clip_low = tune.clip_low,
                                                              .clip_high = tune.clip_high,
                                                              .value_clip = tune.value_clip,
                                                              .value_weight = tune.value_weight,
                                                              .kl_in_loss = tune.kl_in_loss ? tune.kl : 0});
    end_plan(plan, recipe, mesh, sizes, {.table = scalar_head_table(kValueHead, plan.model, 0)});
  });
  return plan;
}

}  // namespace sinter::tune
