#include "eval/layouts/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/together.h"
#include "eval/recipes/draw.h"
#include "models/parameter_store.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;

struct Step {
  double loss = 0, norm = 0;
};

std::vector<Step> read_steps(const std::string& run) {
  std::vector<Step> steps;
  const std::string path = run + "/metrics.jsonl";
  std::istringstream lines(base::read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const nlohmann::json j = base::parse_json(line, path);
    steps.push_back({j["loss"].get<double>(), j["grad_norm"].get<double>()});
  }
  return steps;
}

// All masters of a checkpoint by name, whatever layout wrote it.
using Weights = std::map<std::string, std::vector<float>>;
Weights read_weights(const std::string& checkpoint, const spec::Recipe& recipe) {
  const models::ParameterStore store(spec::make_model_spec(recipe, 0), {.trains = true});
  std::vector<train::StateTensor> tensors;
  for (const auto& slot : store.slots()) tensors.push_back({"master", slot.info.name, slot.parameter.master});
  train::load_checkpoint(checkpoint, tensors);
  Weights weights;
  for (const auto& slot : store.slots()) weights[slot.info.name] = core::to_host<float>(slot.parameter.master);
  return weights;
}

// Trains `steps` steps under a layout on the first ranks of the world; the others wait. "" or why it failed.
std::string train_under(spec::Recipe recipe, const spec::ParallelSpec& layout, int64_t steps,
                        comm::Communicator& world) {
  const bool takes_part = world.rank() < layout.ranks();
  const std::unique_ptr<comm::Communicator> group = world.split(takes_part ? 0 : 1, world.rank(), "case");
  const double bucket = recipe.parallel.bucket_mib;
  recipe.parallel = layout;
  recipe.parallel.bucket_mib = bucket;
  recipe.train.steps = steps;
  try {
    comm::together(world, [&] {
      if (takes_part) train::Trainer(recipe, *group).run();
    });
  } catch (const comm::JointError& e) {
    return e.what();
  }
  return "";
}

// One step of plain gradient descent from the first weights: what it takes off them is the gradient, in whatever pieces
// and places the layout keeps it. The rate is so large that the weights' own rounding does not count.
constexpr double kProbeRate = 1024;

spec::Recipe make_probe(spec::Recipe recipe) {
  recipe.optimizer = {};
  recipe.optimizer.kind = spec::OptimizerKind::sgd;
  recipe.optimizer.lr = kProbeRate;
  recipe.optimizer.momentum = recipe.optimizer.weight_decay = recipe.optimizer.clip = 0;
  recipe.checkpoint.initial = true;
  recipe.checkpoint.keep = 2;
  return recipe;
}

double relative(double a, double b) { return std::abs(a - b) / std::max(std::abs(b), 1e-6); }

// The first step's gradients are those of equal weights. After it Adam's first updates, which are as large for small
// gradients, and Muon's iterations enlarge rounding, most of all in 16 bits, and where two experts are as likely within
// rounding a token may go to the other one, which moves their weights.
void set_limits(const spec::Recipe& recipe, LayoutOutcome& out) {
  const bool is_f32 = recipe.train.precision == base::DType::f32;
  const bool is_muon = recipe.optimizer.kind == spec::OptimizerKind::muon, routes = recipe.model.experts > 0;
  out.loss_limit = is_f32 ? 1e-5 : 2e-3;
  // In bf16 a token may be routed to another expert, which moves all of its own gradient.
  out.gradient_limit = out.is_exact ? 0 : is_f32 ? 1e-5 : routes ? 1.0 : 1e-1;
  out.first_norm_limit = is_f32 ? 1e-5 : 2e-2;
  out.norm_limit = is_f32 ? (routes ? 1e-3 : 1e-4) : 1e-1;
  out.parameter_limit = !is_f32 ? 5e-2 : routes ? (is_muon ? 1e-2 : 1e-3) : is_muon ? 1e-3 : 1e-5;
}

// The largest difference in a tensor beside the tensor's largest gradient. Tensors whose gradients are zero but for
// rounding (biases of keys) count by the largest of all.
double gradient_error(const Weights& ours, const Weights& one, const Weights& from) {
  struct Size {
    double difference = 0, largest = 0;
  };
  std::vector<Size> sizes;
  double largest = 0;
  for (const auto& [name, first] : from) {
    const std::vector<float>&a = ours.at(name), &b = one.at(name);
    Size size;
    for (size_t i = 0; i < first.size(); ++i) {
      const double difference = std::abs(double(a[i]) - b[i]) / kProbeRate;
      size.difference = std::max(size.difference, std::isnan(difference) ? INFINITY : difference);
      size.largest = std::max(size.largest, std::abs(double(b[i]) - first[i]) / kProbeRate);
    }
    sizes.push_back(size);
    largest = std::max(largest, size.largest);
  }
  double worst = 0;
  for (const Size& size : sizes)
    worst = std::max(worst, size.difference / std::max({size.largest, 1e-2 * largest, 1e-30}));
  return worst;
}

// Whether a layout adds the same numbers in the same order as one rank: stages alone, which take micro-batches in turn.
// A tied table sums its two ends apart, and a bias before a border is not summed by the norm behind it.
bool is_exact(const spec::ParallelSpec& p, const spec::Recipe& recipe) {
  return p.ranks() == p.pp && p.schedule != spec::PipelineKind::gpipe && !recipe.model.tied_head &&
         recipe.model.family != "gpt2" && !p.offload.has_state();
}

void compare_probes(const std::string& ours, const std::string& one, const spec::Recipe& recipe, LayoutOutcome& out) {
  const std::string first = "/step-00000000";
  const Weights from = read_weights(one + first, recipe);
  if (read_weights(ours + first, recipe) != from) {
    out.problem = "the first weights are not those of one rank, bit for bit";
    return;
  }
  out.gradient_error =
      gradient_error(read_weights(ours + "/latest", recipe), read_weights(one + "/latest", recipe), from);
  set_limits(recipe, out);
  if (!(out.gradient_error <= out.gradient_limit))
    out.problem = fmt::format("the first gradients are off by {:.1e}, the limit is {:.0e}", out.gradient_error,
                              out.gradient_limit);
}

void compare_runs(const std::string& ours, const std::string& one, const spec::Recipe& recipe, LayoutOutcome& out) {
  const std::vector<Step> a = read_steps(ours), b = read_steps(one);
  if (a.size() != b.size() || a.empty()) {
    out.problem = fmt::format("{} steps, one rank has {}", a.size(), b.size());
    return;
  }
  auto worst = [](double& error, double value) { error = std::max(error, std::isnan(value) ? INFINITY : value); };
  for (size_t i = 0; i < a.size(); ++i) {
    worst(out.loss_error, relative(a[i].loss, b[i].loss));
    worst(out.norm_error, relative(a[i].norm, b[i].norm));
  }
  const Weights p = read_weights(ours + "/latest", recipe), q = read_weights(one + "/latest", recipe);
  for (const auto& [name, expected] : q) {
    const std::vector<float>& found = p.at(name);
    for (size_t i = 0; i < found.size(); ++i) worst(out.parameter_error, std::abs(double(found[i]) - expected[i]));
  }
  set_limits(recipe, out);
  const double first_norm_error = relative(a[0].norm, b[0].norm);
  if (!(out.loss_error <= out.loss_limit))
    out.problem = fmt::format("losses are off by {:.1e}, the limit is {:.0e}", out.loss_error, out.loss_limit);
  else if (!(first_norm_error <= out.first_norm_limit))
    out.problem = fmt::format("the first gradient norm is off by {:.1e}, the limit is {:.0e}", first_norm_error,
                              out.first_norm_limit);
  else if (!(out.norm_error <= out.norm_limit))
    out.problem = fmt::format("gradient norms are off by {:.1e}, the limit is {:.0e}", out.norm_error, out.norm_limit);
  else if (!(out.parameter_error <= out.parameter_limit))
    out.problem =
        fmt::format("a weight is off by {:.1e}, the limit is {:.0e}", out.parameter_error, out.parameter_limit);
}

}  // namespace

LayoutOutcome compare_layout(const LayoutCase& c, comm::Communicator& world, const std::string& folder) {
  LayoutOutcome out;
  const bool is_first = world.rank() == 0;
  spec::Recipe recipe = c.recipe;
  const std::string shard = folder + "/data.tok", ours = folder + "/ranks", one = folder + "/one";
  comm::together(world, [&] {
    if (!is_first) return;
    fs::remove_all(folder);
    base::create_folders(folder);
    write_random_shard(shard, recipe.model.vocab_size, static_cast<uint64_t>(recipe.train.seed));
  });
  recipe.data.sources = {{shard}};
  const int64_t all = recipe.train.steps, first = c.is_resumed ? all - 2 : all;
  // Trains in a folder under a layout unless something went wrong before.
  auto train = [&](spec::Recipe with, const std::string& run, const spec::ParallelSpec& layout, int64_t steps) {
    with.checkpoint.dir = run;
    if (out.problem.empty()) out.problem = train_under(with, layout, steps, world);
  };
  const spec::Recipe probe = make_probe(recipe);
  train(probe, ours + ".probe", c.layout, 1);
  train(probe, one + ".probe", {}, 1);
  train(recipe, ours, c.layout, first);
  if (c.is_resumed) train(recipe, ours, c.second, all);
  train(recipe, one, {}, all);
  if (!out.problem.empty()) return out;
  out.is_exact = is_exact(c.layout, recipe);
  comm::together(world, [&] {
    if (!is_first) return;
    compare_probes(ours + ".probe", one + ".probe", recipe, out);
    if (out.problem.empty()) compare_runs(ours, one, recipe, out);
  });
  if (is_first && out.problem.empty()) fs::remove_all(folder);
  return out;
}

}  // namespace sinter::eval
