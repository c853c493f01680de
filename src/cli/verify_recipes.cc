#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
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
  int64_t count = 20, only = -1, jobs = 1;
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

nlohmann::json to_json(int64_t index, const eval::RecipeOutcome& o) {
  return {{"index", index},
          {"recipe", o.what},
          {"loss_error", o.loss_error},
          {"norm_error", o.norm_error},
          {"logprob_error", o.logprob_error},
          {"problem", o.problem}};
}

void print(const Flags& flags, int64_t index, const eval::RecipeOutcome& o) {
  const std::string result = o.problem.empty() ? fmt::format("ok (loss {:.1e}, norm {:.1e}, tokens {:.1e})",
                                                             o.loss_error, o.norm_error, o.logprob_error)
                                               : "FAIL: " + o.problem;
  std::printf("%3ld  %s  %s\n", index, o.what.c_str(), result.c_str());
  if (!o.problem.empty())
    std::printf("     repeat: sinter verify recipes --seed %lu --only %ld --device %s --keep DIR\n", flags.seed, index,
                flags.device.c_str());
  std::fflush(stdout);
}

// Compares `jobs` recipes at a time and tells of them in their order.
std::vector<eval::RecipeOutcome> compare_all(const Flags& flags, int64_t first, int64_t end,
                                             const std::string& folder) {
  std::vector<eval::RecipeOutcome> outcomes(static_cast<size_t>(end - first));
  std::vector<bool> is_done(outcomes.size());
  std::mutex mutex;
  size_t next = 0, next_told = 0;
  const int64_t threads = flags.jobs > 1 ? std::max<int64_t>(1, base::num_threads() / flags.jobs) : 0;
  auto work = [&] {
    std::unique_lock lock(mutex);
    while (next < outcomes.size()) {
      const size_t i = next++;
      lock.unlock();
      eval::RecipeOutcome o;
      try {
        o = eval::compare_recipe({.seed = flags.seed,
                                  .index = static_cast<uint64_t>(first) + i,
                                  .device = flags.device,
                                  .folder = folder,
                                  .threads = threads});
      } catch (const std::exception& e) {
        o.problem = e.what();
      }
      lock.lock();
      outcomes[i] = std::move(o);
      is_done[i] = true;
      for (; next_told < outcomes.size() && is_done[next_told]; ++next_told) {
        if (!flags.as_json) print(flags, first + static_cast<int64_t>(next_told), outcomes[next_told]);
      }
    }
  };
  std::vector<std::thread> workers;
  for (int64_t j = 1; j < std::min(flags.jobs, end - first); ++j) workers.emplace_back(work);
  work();
  for (std::thread& worker : workers) worker.join();
  return outcomes;
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
  const int64_t first = flags.only >= 0 ? flags.only : 0, end = flags.only >= 0 ? flags.only + 1 : flags.count;
  const std::vector<eval::RecipeOutcome> outcomes = compare_all(flags, first, end, folder);
  nlohmann::json report = nlohmann::json::array();
  for (size_t i = 0; i < outcomes.size(); ++i) report.push_back(to_json(first + static_cast<int64_t>(i), outcomes[i]));
  const auto num_failed =
      std::count_if(outcomes.begin(), outcomes.end(), [](const auto& o) { return !o.problem.empty(); });
  if (flags.as_json)
    std::printf("%s\n", report.dump(2).c_str());
  else
    std::printf("%zu recipes, %zu failed (seed %lu, %s against %s)\n", outcomes.size(), static_cast<size_t>(num_failed),
                flags.seed, flags.device.c_str(), flags.device == "cpu" ? "the reference" : "the CPU");
  if (!is_kept) std::filesystem::remove_all(folder);
  SINTER_CHECK(num_failed == 0, "{} of {} recipes failed", num_failed, outcomes.size());
}

}  // namespace

void add_verify_recipes(Command verify) {
  auto flags = std::make_shared<Flags>();
  const Command verb = verify.add_verb("recipes", "train random recipes and compare with the reference kernels");
  verb.option("--seed", &flags->seed, "of the draw").shows_default();
  verb.option("--count", &flags->count, "recipes to draw").at_least(1).shows_default();
  verb.option("--only", &flags->only, "this recipe of the draw alone");
  verb.option("--device", &flags->device, "cpu, cuda or cuda:N").shows_default();
  verb.option("--jobs", &flags->jobs, "recipes at a time; they share the CPU's threads").at_least(1).shows_default();
  verb.option("--keep", &flags->keep, "folder for the recipes and runs that fail (else removed)");
  verb.option("--continue", &flags->model, "print what this model generates from random prompts, and nothing else");
  verb.option("--precision", &flags->precision, "with --continue: fp32, bf16 or fp16").shows_default();
  verb.flag("--json", &flags->as_json, "print the outcomes as JSON");
  verb.footer(
      "Each recipe is trained for a few steps twice, each in a process of its own: by the CPU's fast kernels and by\n"
      "plain loops, or by a GPU and by the CPU's fast kernels. Losses, gradient norms, validation losses and "
      "generated\n"
      "tokens must agree. Tokens may differ where two are as likely within the precision.\n\n"
      "Examples:\n"
      "  sinter verify recipes --seed 7 --count 50\n"
      "  sinter verify recipes --device cuda --seed 7 --count 200 --jobs 8\n"
      "  sinter verify recipes --device cuda --seed 7 --only 12 --keep out");
  verb.on_run([flags] { run_recipes(*flags); });
}

}  // namespace sinter::cli
