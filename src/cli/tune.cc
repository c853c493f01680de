#include <fmt/format.h>
#include <fmt/ranges.h>

#include <csignal>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/run_hooks.h"
#include "cli/verbs.h"
#include "comm/communicator.h"
#include "comm/together.h"
#include "core/device.h"
#include "spec/tune_recipe.h"
#include "train/trainer.h"
#include "tune/run/tune_plan.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string recipe;
  std::vector<std::string> overrides;
  bool is_dry_run = false, is_quiet = false, as_json = false, prints_recipe = false, lists_keys = false;
};

using MakePlan = train::RunPlan (*)(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);

bool is_absent(const std::string& device) {
  try {
    core::runtime(core::parse_device(device));
    return false;
  } catch (const base::Error&) {
    return true;
  }
}

void tune(const Flags& flags, MakePlan make_plan, comm::Communicator& comm) {
  spec::TuneRecipe recipe;
  comm::together(comm, [&] { recipe = spec::load_tune_recipe(flags.recipe, flags.overrides); });
  if (flags.prints_recipe) {
    if (comm.rank() == 0)
      std::printf("%s%s", spec::recipe_to_toml(recipe.base).c_str(), spec::tune_sections_to_toml(recipe).c_str());
    return;
  }
  if (flags.is_dry_run && is_absent(recipe.base.train.device)) {
    base::log_info("{} is not here: the plan is made without it. A GPU needs about 100 MiB more for workspaces",
                   recipe.base.train.device);
    recipe.base.train.device = "cpu";
    recipe.is_stand_in = true;
  }
  train::Trainer trainer(recipe.base, comm,
                         [&](const spec::Recipe&, const parallel::Mesh& mesh) { return make_plan(recipe, mesh); });
  if (comm.rank() == 0 && (!flags.is_quiet || flags.as_json))
    std::printf("%s\n", (flags.as_json ? trainer.plan_json() : trainer.plan_text()).c_str());
  std::fflush(stdout);
  if (flags.is_dry_run) return;
  const train::TrainResult result = trainer.run(make_run_hooks(recipe.base, comm));
  if (comm.rank() != 0) return;
  if (!flags.is_quiet && result.losses.size() > 1)
    std::printf("%s\n", base::text_plot(result.losses, 72, 14, "loss").c_str());
  std::string line = fmt::format("{} {}", base::format_grouped(result.steps), result.steps == 1 ? "step" : "steps");
  if (!result.losses.empty()) line += fmt::format(", loss {:.4f}", result.loss);
  if (result.validation_loss) line += fmt::format(", validation loss {:.4f}", *result.validation_loss);
  if (!result.stopped.empty()) line += ", stopped early: " + result.stopped;
  line += result.checkpoint.empty()
              ? "; nothing saved"
              : fmt::format("; {} in {}", recipe.has_adapter() ? "adapter" : "model", result.checkpoint);
  std::printf("%s\n", line.c_str());
  if (result.stopped.starts_with("diverged")) base::fail("tuning {}", result.stopped);
}

void print_keys() {
  std::string text, last;
  for (const spec::RecipeKey& key : spec::tune_recipe_keys()) {
    if (last != key.section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", last = key.section);
    const std::string type = key.range.empty() ? key.type : key.type + ", " + key.range;
    text += fmt::format("{} = {}\n", key.name, key.default_value) + wrap_text(key.meaning + ". " + type, 6, kHelpWidth);
  }
  text += "\nAll sections of `sinter train --keys` are here too.\n";
  std::fputs(text.c_str(), stdout);
}

void run_tune(const Flags& flags, MakePlan make_plan) {
  if (flags.lists_keys) return print_keys();
  if (flags.recipe.empty()) base::fail_usage("name a recipe: sinter tune sft RECIPE.toml");
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may go: the run does not
  comm::Communicator& comm = comm::world();
  base::set_log_rank(comm.rank());
  try {
    tune(flags, make_plan, comm);
  } catch (const comm::JointError& e) {
    if (comm.rank() != 0) throw QuietExit{e.is_usage() ? 2 : 1};  // the first rank speaks for all
    if (e.is_usage()) throw base::UsageError(e.what());
    throw;
  } catch (const std::exception& e) {
    if (comm.size() == 1) throw;
    // The other ranks would wait for this one for ever.
    base::log_error("{}", e.what());
    comm::abort_all(dynamic_cast<const base::UsageError*>(&e) ? 2 : 1);
    throw;
  }
}

void add_kind(const Command& parent, const std::string& name, const std::string& help, const std::string& examples,
              MakePlan make_plan) {
  const Command verb = parent.add_verb(name, help);
  auto flags = std::make_shared<Flags>();
  verb.option("recipe", &flags->recipe, "RECIPE.toml (its keys: --keys)");
  verb.option("overrides", &flags->overrides, "section.key=value, wins over the recipe");
  const Option dry_run =
      verb.flag("--dry-run", &flags->is_dry_run, "print the plan (what trains, data, memory) and stop");
  verb.flag("--json", &flags->as_json, "with --dry-run: print the plan as JSON").needs(dry_run);
  verb.flag("--print-recipe", &flags->prints_recipe, "print the effective recipe, every key written out, and stop");
  verb.flag("-q,--quiet", &flags->is_quiet, "no plan and no plot");
  verb.flag("--keys", &flags->lists_keys, "print the keys of [adapter] and [tune], and stop");
  verb.footer(
      "Ctrl-C ends the run after the current step with a checkpoint; the same command goes on from it.\n\nExamples:\n" +
      examples);
  verb.on_run([flags, make_plan] { run_tune(*flags, make_plan); });
}

}  // namespace

void add_tune(Command app) {
  const Command verb =
      app.add_verb("tune", "tune a model on conversations, preferences or rewards: an adapter, or all of it")
          .requires_verb();
  add_kind(verb, "sft", "supervised fine-tuning on conversations or prompts with answers",
           "  sinter tune sft recipes/tune/quickstart.toml --dry-run\n"
           "  sinter tune sft my.toml adapter.rank=8 optimizer.lr=2e-4\n"
           "  sinter tune sft my.toml adapter.kind=full optimizer.lr=1e-5",
           tune::make_sft_plan);
  add_kind(verb, "dpo", "preference tuning on pairs (DPO, IPO, SimPO, ORPO, ...) or labelled answers (KTO)",
           "  sinter tune dpo my.toml --dry-run\n"
           "  sinter tune dpo my.toml tune.loss=simpo tune.beta=2 tune.gamma=0.5\n"
           "  sinter tune dpo my.toml tune.loss=kto",
           tune::make_dpo_plan);
  add_kind(verb, "reward", "a reward model from preference pairs, as a sequence classifier with one label",
           "  sinter tune reward my.toml\n"
           "  sinter tune reward my.toml adapter.kind=full optimizer.lr=1e-5",
           tune::make_reward_plan);
  add_kind(verb, "ppo", "learn from rewards of sampled answers, held against values that the model learns beside",
           "  sinter tune ppo my.toml tune.rewards=model tune.reward_model=run-reward/latest tune.kl=0.05\n"
           "  sinter tune ppo my.toml adapter.kind=full tune.iterations=4 optimizer.lr=1e-5",
           tune::make_ppo_plan);
  add_kind(verb, "grpo", "learn from rewards of answers that the model samples itself",
           "  sinter tune grpo recipes/tune/grpo-arithmetic.toml model.path=MODEL data.sources=sums.jsonl\n"
           "  sinter tune grpo my.toml tune.rewards=math tune.reward_field=answer tune.group=16",
           tune::make_grpo_plan);
}

}  // namespace sinter::cli
