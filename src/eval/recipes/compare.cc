#include "eval/recipes/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/process.h"
#include "core/device.h"
#include "eval/recipes/continuations.h"
#include "eval/recipes/draw.h"

namespace sinter::eval {
namespace {

struct Step {
  double loss = 0, norm = 0, validation = 0;
  bool is_skipped = false;
};

std::vector<Step> read_steps(const std::string& metrics) {
  std::vector<Step> steps;
  std::istringstream lines(base::read_file(metrics));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = base::parse_json(line, metrics);
    auto number = [&](const char* key) { return j[key].is_number() ? j[key].get<double>() : std::nan(""); };
    const double validation = j.contains("validation_loss") ? number("validation_loss") : 0.0;
    steps.push_back({number("loss"), number("grad_norm"), validation, j.value("skipped", false)});
  }
  return steps;
}

std::string last_line(const std::string& path) {
  std::istringstream lines(base::read_file(path));
  std::string last;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) last = line;
  }
  return last;
}

// Whose kernels a child runs.
struct Side {
  std::string run;  // its folder
  std::string device;
  std::vector<std::string> environment;
  std::string precision = {};  // in place of the recipe's
};

// This program in a child; "" or what went wrong. What it says goes to `log`.
std::string run_child(const Side& side, const std::string& log, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), base::program_path());
  const base::ProcessResult result = base::run_process(
      {.arguments = std::move(arguments), .environment = side.environment, .output = log, .timeout_seconds = 300});
  if (result.timed_out) return "no end after 300 s";
  if (result.status > 128) return fmt::format("ended by signal {}: {}", result.status - 128, last_line(log));
  if (result.status != 0) return fmt::format("status {}: {}", result.status, last_line(log));
  return "";
}

std::string train(const Side& side, const std::string& recipe) {
  std::vector<std::string> arguments = {"train", recipe, "--quiet", "checkpoint.dir='" + side.run + "'",
                                        "train.device='" + side.device + "'"};
  if (!side.precision.empty()) arguments.push_back("train.precision='" + side.precision + "'");
  return run_child(side, side.run + ".log", std::move(arguments));
}

Side reference_side(const RecipeComparison& c, const spec::Recipe& recipe, const std::string& run) {
  Side side{run, "cpu", {}};
  if (core::parse_device(c.device).kind == core::DeviceKind::cpu)
    side.environment.push_back("SINTER_KERNELS=reference");
  if (base::is_fp8(recipe.train.precision)) side.precision = "bf16";
  return side;
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-6); }

void compare_steps(const std::vector<Step>& ours, const std::vector<Step>& expected, RecipeOutcome& out) {
  if (ours.size() != expected.size() || ours.empty()) {
    out.problem = fmt::format("{} steps, the reference has {}", ours.size(), expected.size());
    return;
  }
  for (size_t i = 0; i < ours.size(); ++i) {
    if (ours[i].is_skipped != expected[i].is_skipped) {
      out.problem = fmt::format("step {} was {}skipped, the reference's was{}", i + 1, ours[i].is_skipped ? "" : "not ",
                                expected[i].is_skipped ? "" : " not");
      return;
    }
    const double loss = relative(ours[i].loss, expected[i].loss), norm = relative(ours[i].norm, expected[i].norm);
    const double validation = relative(ours[i].validation, expected[i].validation);
    out.loss_error = std::max(out.loss_error, std::isnan(loss + validation) ? INFINITY : std::max(loss, validation));
    out.norm_error = std::max(out.norm_error, std::isnan(norm) ? INFINITY : norm);
  }
  if (out.loss_error > out.loss_limit)
    out.problem = fmt::format("loss is off by {:.1e}, the limit is {:.0e}", out.loss_error, out.loss_limit);
  else if (out.norm_error > out.norm_limit)
    out.problem = fmt::format("gradient norm is off by {:.1e}, the limit is {:.0e}", out.norm_error, out.norm_limit);
}

// Both sides continue random prompts with the model that the first one trained.
void compare_generation(const RecipeComparison& c, const spec::Recipe& recipe, const Side& ours, const Side& theirs,
                        RecipeOutcome& out) {
  const base::DType compute =
      recipe.train.precision == base::DType::f8e4m3 ? base::DType::bf16 : recipe.train.precision;
  std::vector<nlohmann::json> made;
  for (const Side* side : {&ours, &theirs}) {
    const std::string log = side->run + "-generate.log";
    const std::string problem =
        run_child(*side, log,
                  {"verify", "recipes", "--continue", ours.run + "/latest", "--device", side->device, "--precision",
                   std::string(base::dtype_name(compute)), "--seed", fmt::format("{}", c.seed ^ c.index)});
    if (!problem.empty()) {
      out.problem = fmt::format("generation{}: {}", side == &theirs ? " by the reference" : "", problem);
      return;
    }
    made.push_back(base::parse_json(last_line(log), log));
  }
  const ContinuationDifference difference = compare_continuations(made[0], made[1], out.logprob_limit);
  out.logprob_error = difference.logprob_error;
  out.problem = difference.problem;
}

// By precision: how far rounding alone carries four steps. Experts chosen otherwise in 16 bits move a few tokens.
void set_limits(const spec::Recipe& recipe, RecipeOutcome& out) {
  const bool is_f32 = recipe.train.precision == base::DType::f32 && recipe.optimizer.states == base::DType::f32;
  const bool is_fp8 = recipe.train.precision == base::DType::f8e4m3;
  const bool routes = recipe.model.experts > 0;
  out.loss_limit = is_f32 ? 1e-4 : is_fp8 ? 3e-2 : routes ? 1e-2 : 4e-3;
  out.norm_limit = is_f32 ? 2e-3 : is_fp8 ? 2e-1 : routes ? 1e-1 : 4e-2;
  out.logprob_limit = recipe.train.precision == base::DType::f32 ? 1e-4 : routes ? 1e-1 : 4e-2;
}

}  // namespace

RecipeOutcome compare_recipe(const RecipeComparison& c) {
  spec::Recipe recipe = draw_recipe({.seed = c.seed, .index = c.index, .device = c.device});
  RecipeOutcome out{.what = describe(recipe)};
  set_limits(recipe, out);
  const std::string stem = fmt::format("{}/{}-{}", c.folder, c.seed, c.index);
  std::filesystem::remove_all(stem);
  base::create_folders(stem);
  const std::string shard = stem + "/data.tok", file = stem + "/recipe.toml";
  write_random_shard(shard, recipe.model.vocab_size, c.seed ^ c.index);
  recipe.data.sources = {{shard}};
  if (draws_two_sources(recipe)) {
    recipe.data.sources.push_back({stem + "/more.tok", 0.4});
    write_random_shard(recipe.data.sources[1].path, recipe.model.vocab_size, (c.seed ^ c.index) + 1);
  }
  base::write_file_atomic(file, spec::recipe_to_toml(recipe));
  Side ours{stem + "/fast", c.device, {}}, theirs = reference_side(c, recipe, stem + "/reference");
  for (Side* side : {&ours, &theirs}) {
    if (c.threads > 0) side->environment.push_back(fmt::format("SINTER_THREADS={}", c.threads));
  }
  const std::string failure = train(ours, file), reference_failure = train(theirs, file);
  if (!failure.empty() || !reference_failure.empty()) {
    out.problem = failure.empty() ? "the reference failed: " + reference_failure : failure;
    return out;
  }
  compare_steps(read_steps(ours.run + "/metrics.jsonl"), read_steps(theirs.run + "/metrics.jsonl"), out);
  if (out.problem.empty()) compare_generation(c, recipe, ours, theirs, out);
  if (out.problem.empty()) std::filesystem::remove_all(stem);
  return out;
}

}  // namespace sinter::eval
