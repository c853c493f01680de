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
#include "eval/recipes/draw.h"

namespace sinter::eval {
namespace {

struct Step {
  double loss = 0, norm = 0;
  bool is_skipped = false;
};

std::vector<Step> read_steps(const std::string& metrics) {
  std::vector<Step> steps;
  std::istringstream lines(base::read_file(metrics));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = base::parse_json(line, metrics);
    auto number = [&](const char* key) { return j[key].is_number() ? j[key].get<double>() : std::nan(""); };
    steps.push_back({number("loss"), number("grad_norm"), j.value("skipped", false)});
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

// One training run in a child; "" or what went wrong.
std::string train(const std::string& recipe, const std::string& run, const std::string& device,
                  std::vector<std::string> environment) {
  const std::string log = run + ".log";
  const base::ProcessResult result =
      base::run_process({.arguments = {base::program_path(), "train", recipe, "--quiet", "checkpoint.dir='" + run + "'",
                                       "train.device='" + device + "'"},
                         .environment = std::move(environment),
                         .output = log,
                         .timeout_seconds = 300});
  if (result.timed_out) return "no end after 300 s";
  if (result.status > 128) return fmt::format("ended by signal {}: {}", result.status - 128, last_line(log));
  if (result.status != 0) return fmt::format("status {}: {}", result.status, last_line(log));
  return "";
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
    out.loss_error = std::max(out.loss_error, std::isnan(loss) ? INFINITY : loss);
    out.norm_error = std::max(out.norm_error, std::isnan(norm) ? INFINITY : norm);
  }
  if (out.loss_error > out.loss_limit)
    out.problem = fmt::format("loss is off by {:.1e}, the limit is {:.0e}", out.loss_error, out.loss_limit);
  else if (out.norm_error > out.norm_limit)
    out.problem = fmt::format("gradient norm is off by {:.1e}, the limit is {:.0e}", out.norm_error, out.norm_limit);
}

// By precision: how far rounding alone carries four steps. Experts chosen otherwise in 16 bits move a few tokens.
void set_limits(const spec::Recipe& recipe, RecipeOutcome& out) {
  const bool is_f32 = recipe.train.precision == base::DType::f32 && recipe.optimizer.states == base::DType::f32;
  const bool is_fp8 = recipe.train.precision == base::DType::f8e4m3;
  const bool routes = recipe.model.experts > 0;
  out.loss_limit = is_f32 ? 1e-4 : is_fp8 ? 3e-2 : routes ? 1e-2 : 4e-3;
  out.norm_limit = is_f32 ? 2e-3 : is_fp8 ? 2e-1 : routes ? 1e-1 : 4e-2;
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
  base::write_file_atomic(file, spec::recipe_to_toml(recipe));
  const std::string ours = train(file, stem + "/fast", c.device, {});
  const std::string theirs = train(file, stem + "/reference", "cpu", {"SINTER_KERNELS=reference"});
  if (!ours.empty() || !theirs.empty()) {
    out.problem = ours.empty() ? "the reference failed: " + theirs : ours;
    return out;
  }
  compare_steps(read_steps(stem + "/fast/metrics.jsonl"), read_steps(stem + "/reference/metrics.jsonl"), out);
  if (out.problem.empty()) std::filesystem::remove_all(stem);
  return out;
}

}  // namespace sinter::eval
