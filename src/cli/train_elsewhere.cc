#include "cli/train_elsewhere.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/help.h"
#include "cli/plan/plan.h"
#include "plan/hardware.h"
#include "plan/memory.h"
#include "plan/model_shape.h"
#include "plan/software.h"
#include "plan/time.h"
#include "spec/parameters.h"
#include "spec/trained_layouts.h"
#include "train/layout_choice.h"

namespace sinter::cli {
plan::MatrixFormat format_of(base::DType precision) {
  if (base::is_fp8(precision)) return plan::MatrixFormat::fp8;
  return precision == base::DType::f32   ? plan::MatrixFormat::fp32
         : precision == base::DType::f16 ? plan::MatrixFormat::fp16
                                         : plan::MatrixFormat::bf16;
}

namespace {

struct Elsewhere {
  plan::Cluster cluster;
  spec::ModelSpec model;
  spec::ParallelSpec layout;
  plan::MemoryEstimate memory;
  plan::StepEstimate step;
  plan::MatrixFormat format;
  double steps = 0, tokens = 0;
};

Elsewhere plan_elsewhere(const spec::Recipe& recipe, const std::string& cluster) {
  Elsewhere e;
  e.cluster = plan::parse_cluster(plan::load_hardware(), cluster);
  e.model = spec::make_model_spec(recipe, train::vocabulary_of(recipe));
  e.layout = spec::make_layout(recipe, e.cluster.num_devices);
  const std::vector<std::string> missing = spec::untrained_keys(e.layout);
  SINTER_CHECK(missing.empty(), "[parallel] {} is not trained yet", fmt::join(missing, ", "));
  spec::check_parallel_spec(e.layout, e.model);
  e.format = format_of(recipe.train.precision);
  const plan::Software& software = plan::find_software("sinter");
  const plan::ModelShape shape = plan::make_model_shape(e.model);
  e.memory = plan::plan_memory(shape, e.layout, software);
  e.step = plan::plan_step(shape, e.layout, e.cluster, software,
                           plan::find_efficiency(e.cluster.device, software.name, e.format), e.format);
  const auto per_step = static_cast<double>(e.layout.global_batch * e.layout.seq_len);
  e.steps = recipe.train.steps > 0 ? static_cast<double>(recipe.train.steps)
                                   : std::ceil(static_cast<double>(recipe.train.tokens) / per_step);
  e.tokens = e.steps * per_step;
  return e;
}

void print_elsewhere(const Elsewhere& e) {
  const plan::StageMemory& worst = e.memory.worst();
  fmt::print("model      {}, {} parameters\n", spec::family_name(e.model.family),
             base::format_grouped(spec::count_parameters(e.model).total));
  fmt::print("layout     {} on {} x {}\n", spec::describe(e.layout), e.cluster.num_devices, e.cluster.device.name);
  fmt::print("steps      {} of {} tokens = {} micro-batches of {} x {} on each data-parallel rank\n",
             format_whole(e.steps), base::format_grouped(e.layout.global_batch * e.layout.seq_len),
             e.layout.micro_batches(), e.layout.micro_batch, e.layout.seq_len);
  fmt::print("time       {} a step (MFU {:.1f} %), {} for {} tokens, {} GPU hours\n",
             base::format_duration(e.step.seconds), 100 * e.step.mfu, base::format_duration(e.steps * e.step.seconds),
             base::format_count(e.tokens),
             format_whole(e.steps * e.step.seconds / 3600 * static_cast<double>(e.cluster.num_devices)));
  fmt::print(
      "{}", wrap_text("by constants " + plan::efficiency_source(e.cluster.device, "sinter", e.format), 11, kHelpWidth));
  base::Table table({"memory of the fullest device", "size"});
  const auto values = plan::part_values(worst.device);
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] > 0) table.add_row({std::string(plan::kMemoryPartNames[i]), base::format_bytes(values[i])});
  }
  table.add_row({"all", base::format_bytes(worst.device.total())});
  fmt::print("{}", table.to_string());
}

}  // namespace

void dry_run_on(const spec::Recipe& recipe, const std::string& cluster, bool as_json) {
  const Elsewhere e = plan_elsewhere(recipe, cluster);
  const double needed = e.memory.worst().device.total(), there = e.cluster.device.memory_bytes;
  if (as_json) {
    print_json({{"layout", spec::describe(e.layout)},
                {"ranks", e.layout.ranks()},
                {"parameters", spec::count_parameters(e.model).total},
                {"steps", e.steps},
                {"tokens", e.tokens},
                {"step_seconds", e.step.seconds},
                {"mfu", e.step.mfu},
                {"memory_bytes", needed},
                {"device_bytes", there}});
  } else {
    print_elsewhere(e);
  }
  SINTER_CHECK(needed <= there,
               "it does not fit: {} a device needs {} and has {}; `sinter plan search` looks for a layout that does",
               e.cluster.device.name, base::format_bytes(needed), base::format_bytes(there));
}

}  // namespace sinter::cli
