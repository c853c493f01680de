#include "train/layout_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/launch.h"
#include "comm/together.h"
#include "core/device.h"
#include "data/source.h"
#include "data/text_files.h"
#include "plan/hardware.h"
#include "plan/memory.h"
#include "plan/model_shape.h"
#include "plan/software.h"
#include "plan/time.h"
#include "spec/trained_layouts.h"
#include "tokenizer/tokenizer.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTried = 4;          // by "tune"
constexpr double kUsableShare = 0.9;  // of the device's memory
constexpr const char* kStandIn = "H100";

// This machine as the planner knows it; where `sinter plan --measure` never ran a stand-in gives the order.
plan::Cluster cluster_here(int64_t ranks) {
  const plan::HardwareTable table = plan::load_hardware();
  const bool is_measured = std::any_of(table.devices.begin(), table.devices.end(),
                                       [](const plan::DeviceSpec& d) { return d.name == plan::kMeasuredName; });
  if (!is_measured)
    base::log_info("parallel.layout: this machine was never measured (sinter plan --measure); ranked as on {}",
                   kStandIn);
  plan::Cluster cluster =
      plan::parse_cluster(table, fmt::format("{}x{}", ranks, is_measured ? plan::kMeasuredName : kStandIn));
  cluster.per_node = std::max(comm::launch().local_ranks, 1);
  return cluster;
}

plan::MatrixFormat format_of(base::DType precision) {
  if (base::is_fp8(precision)) return plan::MatrixFormat::fp8;
  return precision == base::DType::f32   ? plan::MatrixFormat::fp32
         : precision == base::DType::f16 ? plan::MatrixFormat::fp16
                                         : plan::MatrixFormat::bf16;
}

// Every way to write `ranks` as a product of the free axes.
std::vector<spec::ParallelSpec> divisions(const spec::ParallelSpec& from, int64_t ranks) {
  std::vector<spec::ParallelSpec> out;
  for (int64_t tp = 1; tp <= ranks; ++tp) {
    for (int64_t pp = 1; tp * pp <= ranks; ++pp) {
      for (int64_t cp = 1; tp * pp * cp <= ranks; ++cp) {
        if (ranks % (tp * pp * cp) != 0) continue;
        for (int zero = 0; zero <= 3; ++zero) {
          spec::ParallelSpec p = from;
          p.tp = tp, p.pp = pp, p.cp = cp, p.zero = zero;
          p.shard = ranks / (tp * pp * cp), p.replica = 1, p.ep = 1, p.interleave = 1;
          p.schedule = spec::PipelineKind::one_f_one_b;
          p.choice = spec::LayoutChoice::given;
          if (zero == 0 || p.shard > 1) out.push_back(p);
        }
      }
    }
  }
  return out;
}

}  // namespace

int64_t vocabulary_of(const spec::Recipe& recipe) {
  if (recipe.model.vocab_size > 0 || !recipe.model.path.empty()) return recipe.model.vocab_size;
  std::string path = recipe.data.tokenizer;
  for (const spec::SourceRecipe& source : recipe.data.sources) {
    if (path.empty() && !data::stands_for_text(source.path)) path = data::tokenizer_beside(source.path);
  }
  if (path.empty() || !fs::exists(path))
    base::fail("model.vocab_size is not given and '{}' is not here: add model.vocab_size=N",
               path.empty() ? "the data's tokenizer" : path);
  return tokenizer::Tokenizer::load(path).vocab_size();
}

std::vector<spec::ParallelSpec> rank_layouts(const spec::Recipe& recipe, const spec::ModelSpec& model, int64_t ranks,
                                             double device_bytes) {
  const plan::Cluster cluster = cluster_here(ranks);
  const plan::Software& software = plan::find_software("sinter");
  const plan::ModelShape shape = plan::make_model_shape(model);
  const plan::MatrixFormat format = format_of(recipe.train.precision);
  const plan::Efficiency efficiency = plan::find_efficiency(cluster.device, software.name, format);
  std::vector<std::pair<double, spec::ParallelSpec>> ranked;
  std::string reason;
  for (const spec::ParallelSpec& division : divisions(recipe.parallel, ranks)) {
    spec::Recipe with = recipe;
    with.parallel = division;
    const spec::ParallelSpec p = spec::make_layout(with, ranks);
    std::string problem = spec::layout_problem(p, model);
    if (problem.empty()) problem = spec::trained_problem(p, model);
    if (problem.empty()) {
      const double bytes = plan::plan_memory(shape, p, software).worst().device.total();
      if (bytes > kUsableShare * device_bytes)
        problem = fmt::format("needs {} of a rank's {}", base::format_bytes(bytes), base::format_bytes(device_bytes));
    }
    if (problem.empty()) {
      ranked.emplace_back(plan::plan_step(shape, p, cluster, software, efficiency, format).seconds, p);
    } else if (reason.empty()) {
      reason = fmt::format("{}: {}", spec::describe(p), problem);
    }
  }
  SINTER_CHECK(!ranked.empty(), "parallel.layout: no layout of {} ranks can train this recipe; {}", ranks, reason);
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<spec::ParallelSpec> out;
  for (auto& [seconds, layout] : ranked) out.push_back(layout);
  return out;
}

spec::ParallelSpec choose_layout(const spec::Recipe& recipe, comm::Communicator& comm, const TryLayout& try_layout) {
  std::vector<spec::ParallelSpec> layouts;
  comm::together(comm, [&] {
    const core::Device device = comm::local_device(recipe.train.device, comm::launch());
    double bytes = static_cast<double>(core::runtime(device).total_memory_bytes());
    if (device.kind == core::DeviceKind::cpu) bytes /= std::max(comm::launch().local_ranks, 1);
    if (recipe.parallel.device_memory_gib > 0) bytes = std::min(bytes, recipe.parallel.device_memory_gib * 0x1p30);
    layouts = rank_layouts(recipe, spec::make_model_spec(recipe, vocabulary_of(recipe)), comm.size(), bytes);
  });
  // Every rank must take the same, though a machine may rank them otherwise: the first rank's word counts.
  auto word_of = [&](size_t i) { return i < layouts.size() ? spec::describe(layouts[i]) : std::string(); };
  size_t best = 0;
  if (recipe.parallel.choice == spec::LayoutChoice::tune) {
    double fastest = 0;
    std::set<std::array<int64_t, 3>> tried;  // of each division its fastest stage of ZeRO
    for (size_t i = 0; i < layouts.size() && tried.size() < kTried; ++i) {
      if (!tried.insert({layouts[i].tp, layouts[i].pp, layouts[i].cp}).second) continue;
      SINTER_CHECK(
          comm.broadcast_text(word_of(i)) == word_of(i),
          "parallel.layout: the machines rank layouts differently; measure them alike (sinter plan --measure)");
      spec::Recipe trial = recipe;
      trial.parallel = layouts[i];
      const double seconds = try_layout(trial);
      base::log_info("parallel.layout: {} takes {} a step", word_of(i), base::format_duration(seconds));
      if (fastest == 0 || seconds < fastest) best = i, fastest = seconds;
    }
  }
  SINTER_CHECK(comm.broadcast_text(word_of(best)) == word_of(best),
               "parallel.layout: the machines rank layouts differently; measure them alike (sinter plan --measure)");
  base::log_info("parallel.layout: {}, of {} that fit", word_of(best), layouts.size());
  return layouts[best];
}

}  // namespace sinter::train
