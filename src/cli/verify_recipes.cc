#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/verbs.h"
#include "core/device.h"
#include "eval/recipes/compare.h"
#include "eval/recipes/continuations.h"
#include "models/open_model.h"

namespace sinter::cli {
namespace {

struct Flags {
  uint64_t seed = 1;
  int64_t count = 20, only = -1;
  std::string device = "cpu", keep, model, precision = "fp32";
  bool as_json = false;
};

// What the comparison's children do after training.
void print_continuations(const Flags& flags) {
  const nlohmann::json made = eval::make_continuations({.folder = flags.model,
                                                        .device = core::parse_device(flags.device),
                                                        .compute = models::parse_precision(flags.precision),
                                                        .seed = flags.seed});
  std::printf("%s\n", made.dump().c_str());
}

void run_recipes(const Flags& flags) {
  (void)core::parse_device(flags.device);
  if (!flags.model.empty()) {
    print_continuations(flags);
    return;
  }
  const bool is_kept = !flags.keep.empty();
  const std::string temporary = std::filesystem::temp_directory_path() / fmt::format("sinter-recipes-{}", ::getpid());
  const std::string folder = is_kept ? flags.keep : temporary;
  base::create_folders(folder);
  nlohmann::json report = nlohmann::json::array();
  int64_t num_failed = 0, num_run = 0;
  const int64_t first = flags.only >= 0 ? flags.only : 0, end = flags.only >= 0 ? flags.only + 1 : flags.count;
  for (int64_t i = first; i < end; ++i, ++num_run) {
    const eval::RecipeOutcome o = eval::compare_recipe(
        {.seed = flags.seed, .index = static_cast<uint64_t>(i), .device = flags.device, .folder = folder});
    num_failed += !o.problem.empty();
    if (flags.as_json) {
      report.push_back({{"index", i},
                        {"recipe", o.what},
                        {"loss_error", o.loss_error},
                        {"norm_error", o.norm_error},
                        {"logprob_error", o.logprob_error},
                        {"problem", o.problem}});
      continue;
    }
    const std::string result = o.problem.empty() ? fmt::format("ok (loss {:.1e}, norm {:.1e}, tokens {:.1e})",
                                                               o.loss_error, o.norm_error, o.logprob_error)
                                                 : "FAIL: " + o.problem;
    std::printf("%3ld  %s  %s\n", i, o.what.c_str(), result.c_str());
    if (!o.problem.empty())
      std::printf("     repeat: sinter verify recipes --seed %lu --only %ld --device %s --keep DIR\n", flags.seed, i,
                  flags.device.c_str());
    std::fflush(stdout);
  }
  if (flags.as_json)
    std::printf("%s\n", report.dump(2).c_str());
  else
    std::printf("%ld recipes, %ld failed (seed %lu, %s against the reference)\n", num_run, num_failed, flags.seed,
                flags.device.c_str());
  if (!is_kept) std::filesystem::remove_all(folder);
  SINTER_CHECK(num_failed == 0, "{} of {} recipes failed", num_failed, num_run);
}

}  // namespace

void add_verify_recipes(Command verify) {
  auto flags = std::make_shared<Flags>();
  const Command verb = verify.add_verb("recipes", "train random recipes and compare with the reference kernels");
  verb.option("--seed", &flags->seed, "of the draw").shows_default();
  verb.option("--count", &flags->count, "recipes to draw").at_least(1).shows_default();
  verb.option("--only", &flags->only, "this recipe of the draw alone");
  verb.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--keep", &flags->keep, "folder for the recipes and runs that fail (else removed)");
  verb.option("--continue", &flags->model, "print what this model generates from random prompts, and nothing else");
  verb.option("--precision", &flags->precision, "with --continue: fp32, bf16 or fp16").shows_default();
  verb.flag("--json", &flags->as_json, "print the outcomes as JSON");
  verb.footer(
      "Each recipe is trained for a few steps by the device's fast kernels and by plain loops on the CPU, each in a\n"
      "process of its own; losses, gradient norms, validation losses and generated tokens must agree. Tokens may\n"
      "differ where two are as likely within the precision.\n\n"
      "Examples:\n"
      "  sinter verify recipes --seed 7 --count 50\n"
      "  sinter verify recipes --device cuda --seed 7 --only 12 --keep out");
  verb.on_run([flags] { run_recipes(*flags); });
}

}  // namespace sinter::cli
