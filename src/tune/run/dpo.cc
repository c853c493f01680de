// Tuning on preferences: pairs (DPO and its family) or labelled answers (KTO).
#include <fmt/format.h>

#include "comm/together.h"
#include "tune/run/log_probs.h"
#include "tune/run/preference_batches.h"
#include "tune/run/preference_objective.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

PairOptions pair_options(const spec::TuneSection& tune) {
  PairOptions options{.loss = parse_pair_loss(tune.loss),
                      .beta = tune.beta,
                      .label_smoothing = tune.label_smoothing,
                      .gamma = tune.gamma};
  if (options.loss == PairLoss::orpo) options.nll_weight = 1;
  if (options.loss == PairLoss::cpo) options.nll_weight = tune.cpo_alpha;
  return options;
}

std::string reference_text(const spec::TuneRecipe& recipe, bool needs_reference) {
  if (!needs_reference) return "no reference";
  if (!recipe.tune.reference.empty()) return "reference " + recipe.tune.reference;
  return has_adapter_reference(recipe) ? "reference: the adapter off" : "reference: the model before tuning";
}

}  // namespace

train::RunPlan make_dpo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh) {
  train::RunPlan plan;
  comm::together(mesh.all(), [&] {
    plan = begin_plan(recipe, mesh);
    PreferenceOptions preferences{.is_kto = recipe.tune.loss == "kto", .needs_reference = true};
    if (preferences.is_kto) {
      plan.objective = std::make_shared<KtoObjective>(KtoOptions{.beta = recipe.tune.beta});
    } else {
      const PairOptions options = pair_options(recipe.tune);
      plan.objective = std::make_shared<PairObjective>(options);
      preferences.needs_reference = uses_reference(options.loss);
      preferences.learns_prompts = nll_includes_prompt(options.loss);
    }
    const BatchSizes sizes = plan_preferences(plan, recipe, mesh, preferences);
    plan.data_text += fmt::format("loss       {}, beta {:g}, {}\n", recipe.tune.loss, recipe.tune.beta,
                                  reference_text(recipe, preferences.needs_reference));
    end_plan(plan, recipe, mesh, sizes);
  });
  return plan;
}

}  // namespace sinter::tune
