#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/run_hooks.h"
#include "cli/train_elsewhere.h"
#include "cli/verbs.h"
#include "comm/communicator.h"
#include "comm/together.h"
#include "spec/recipe.h"
#include "spec/recipe_keys.h"
#include "train/metrics.h"
#include "train/trainer.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::string recipe;
  std::vector<std::string> overrides;
  bool is_dry_run = false, prints_recipe = false, is_quiet = false, as_json = false, lists_keys = false;
  std::string template_name, on;
};

void train(const Flags& flags, comm::Communicator& comm) {
  spec::Recipe recipe;
  comm::together(comm, [&] { recipe = spec::load_recipe(flags.recipe, flags.overrides); });
  if (flags.prints_recipe) {
    if (comm.rank() == 0) std::printf("%s", spec::recipe_to_toml(recipe).c_str());
    return;
  }
  train::Trainer trainer(recipe, comm);
  if (comm.rank() == 0 && (!flags.is_quiet || flags.as_json)) {
    std::printf("%s\n", (flags.as_json ? trainer.plan_json() : trainer.plan_text()).c_str());
  }
  std::fflush(stdout);
  if (flags.is_dry_run) return;
  const train::TrainResult result = trainer.run(make_run_hooks(recipe, comm));
  if (comm.rank() != 0) return;
  if (!flags.is_quiet && result.losses.size() > 1)
    std::printf("%s\n", base::text_plot(result.losses, 72, 14, "loss").c_str());
  std::string line = fmt::format("{} {}", base::format_grouped(result.steps), result.steps == 1 ? "step" : "steps");
  if (!result.losses.empty()) line += ", loss " + train::number_text(result.loss);
  if (result.validation_loss) {
    line += fmt::format(", validation loss {:.4f}", *result.validation_loss);
    if (result.validation_step != result.steps) line += fmt::format(" at step {}", result.validation_step);
  }
  const bool has_diverged = result.stopped.starts_with("diverged");
  if (!result.stopped.empty()) line += ", stopped early" + (has_diverged ? "" : ": " + result.stopped);
  line += result.checkpoint.empty() ? "; nothing saved" : "; model in " + result.checkpoint;
  if (!result.stopped.empty() && !has_diverged && !result.is_early) line += "; the same command goes on from there";
  std::printf("%s\n", line.c_str());
  if (has_diverged)
    base::fail("training {}; a lower optimizer.lr, a longer schedule.warmup or a smaller optimizer.clip may help",
               result.stopped);
}

// Every key of a recipe, or of one section, or the keys of one name ("lr", "optimizer.lr").
void print_keys(const std::string& wanted) {
  const std::string section = wanted.ends_with(".toml") ? "" : wanted;  // a recipe that was named beside --keys
  std::vector<std::string> sections;
  std::string text, last;
  for (const spec::RecipeKey& key : spec::recipe_keys()) {
    if (sections.empty() || sections.back() != key.section) sections.push_back(key.section);
    const bool is_named = key.name == section || key.section + "." + key.name == section;
    if (!section.empty() && key.section != section && !is_named) continue;
    if (last != key.section) text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", last = key.section);
    const std::string type = key.range.empty() ? key.type : key.type + ", " + key.range;
    text += fmt::format("{} = {}\n", key.name, key.default_value) + wrap_text(key.meaning + ". " + type, 6, kHelpWidth);
  }
  if (text.empty())
    base::fail_usage("a recipe has no section or key '{}'; it has the sections {}{}", section,
                     fmt::join(sections, ", "), base::did_you_mean(section, sections));
  std::fputs(text.c_str(), stdout);
}

void run_train(const Flags& flags) {
  if (!flags.on.empty()) return dry_run_on(spec::load_recipe(flags.recipe, flags.overrides), flags.on, flags.as_json);
  std::signal(SIGPIPE, SIG_IGN);  // whoever reads our output may go: the run does not
  comm::Communicator& comm = comm::world();
  base::set_log_rank(comm.rank());
  try {
    train(flags, comm);
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

}  // namespace

void add_train(Command app) {
  const Command verb =
      app.add_verb("train", "train a model by a recipe; resumes by itself (mpirun or srun for several ranks)");
  auto flags = std::make_shared<Flags>();
  verb.option("recipe", &flags->recipe, "RECIPE.toml (its keys: --keys)");
  verb.option("overrides", &flags->overrides, "section.key=value, wins over the recipe");
  const Option dry_run =
      verb.flag("--dry-run", &flags->is_dry_run, "print the plan (parameters, steps, tokens, data, memory) and stop");
  verb.flag("--json", &flags->as_json, "with --dry-run: print the plan as JSON (metrics.jsonl has a run's numbers)")
      .needs(dry_run);
  verb.option("--on", &flags->on,
              "with --dry-run: plan for these machines instead, such as 16x8xH100; nothing of them is needed")
      .needs(dry_run);
  verb.flag("--print-recipe", &flags->prints_recipe, "print the effective recipe, every key written out, and stop");
  verb.flag("-q,--quiet", &flags->is_quiet, "no plan and no plot");
  verb.flag("--keys", &flags->lists_keys,
            "print every key of a recipe, or those of the section or name given, and stop");
  verb.option("--template", &flags->template_name, "print a commented recipe to start from: small, gpu or cluster");
  verb.footer(
      "Ctrl-C ends the run after the current step with a checkpoint; the same command goes on from it.\n\n"
      "Examples:\n"
      "  sinter train --template small > my.toml\n"
      "  sinter train my.toml --dry-run\n"
      "  sinter train my.toml --dry-run --on 8xH100\n"
      "  sinter train my.toml train.steps=200 optimizer.lr=1e-3\n"
      "  sinter train --keys optimizer\n"
      "  mpirun -n 4 sinter train my.toml");
  verb.on_run([flags] {
    if (flags->lists_keys) return print_keys(flags->recipe);
    if (!flags->template_name.empty()) {
      std::fputs(spec::recipe_template(flags->template_name).c_str(), stdout);
      return;
    }
    if (flags->recipe.empty())
      base::fail_usage("name a recipe: sinter train RECIPE.toml (or --template small > my.toml)");
    run_train(*flags);
  });
}

}  // namespace sinter::cli
