// GRPO: answers in groups, each held against the mean of its group.
#include <algorithm>

#include "base/error.h"
#include "comm/together.h"
#include "tune/run/policy_objective.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

class GroupBatches final : public RolloutBatches {
 public:
  using RolloutBatches::RolloutBatches;

 private:
  // Over all ranks' answers: a batch's deviation is not that of a rank's share.
  void judge(std::vector<Answer>& answers, const std::vector<double>& rewards, int64_t functions) override {
    const comm::Communicator& ranks = mesh().data();
    std::vector<double> all(rewards.size() * static_cast<size_t>(ranks.size()));
    mesh().data().all_gather(std::as_bytes(std::span(rewards)), std::as_writable_bytes(std::span(all)));
    AdvantageOptions options;
    options.group = recipe().tune.group;
    options.scale = recipe().tune.advantages == "none"    ? RewardScale::none
                    : recipe().tune.advantages == "batch" ? RewardScale::batch
                                                          : RewardScale::group;
    const std::vector<double> advantages = group_advantages(options, all, functions);
    const size_t first = answers.size() * static_cast<size_t>(ranks.rank());
    for (size_t i = 0; i < answers.size(); ++i) answers[i].advantage = advantages[first + i];
  }
};

GroupOptions group_options(const spec::TuneRecipe& recipe) {
  GroupOptions options;
  options.sequence_ratio = recipe.tune.rl_loss == "gspo";
  options.loss = parse_group_loss(options.sequence_ratio ? "grpo" : recipe.tune.rl_loss);
  options.epsilon = recipe.tune.clip_low;
  options.epsilon_high = recipe.tune.clip_high;
  options.beta = recipe.tune.kl;
  options.longest = recipe.tune.max_new_tokens;
  return options;
}

}  // namespace

train::RunPlan make_grpo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    SINTER_CHECK(recipe.tune.group >= 2,
                 "tune.group is {}; grpo holds an answer against others to the same prompt: 2 or more",
                 recipe.tune.group);
    plan = begin_plan(recipe, mesh);
    const BatchSizes sizes = plan_rollouts(plan, recipe, mesh, [&](RolloutParts parts) {
      return std::make_unique<GroupBatches>(std::move(parts.prompts), parts.tokenizer, parts.model, recipe, mesh);
    });
    plan.objective = std::make_shared<GroupPolicy>(group_options(recipe));
    end_plan(plan, recipe, mesh, sizes);
  });
  return plan;
}

}  // namespace sinter::tune
