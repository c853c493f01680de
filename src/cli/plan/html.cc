// The page of charts that `sinter plan MODEL --html FILE` writes.
#include "base/html.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/chart.h"
#include "base/text.h"
#include "cli/plan/plan.h"
#include "cli/plan/report.h"
#include "plan/simulate.h"
#include "spec/trained_layouts.h"

namespace sinter::cli {
namespace {

using plan::TrainingPlan;
using plan::TrainingRequest;

base::StackedBars memory_bars(std::string title, const TrainingRequest& request) {
  base::StackedBars bars;
  bars.title = std::move(title);
  bars.unit = "GiB per device";
  bars.parts.assign(plan::kMemoryPartNames.begin(), plan::kMemoryPartNames.end());
  bars.limit = request.cluster.device.memory_bytes / 0x1p30;
  bars.limit_label = request.cluster.device.name;
  return bars;
}

void add_memory_bar(base::StackedBars& bars, std::string label, const plan::MemoryParts& parts, std::string note) {
  base::StackedBars::Bar bar;
  bar.label = std::move(label);
  for (double value : plan::part_values(parts)) bar.values.push_back(value / 0x1p30);
  bar.note = std::move(note);
  bars.bars.push_back(std::move(bar));
}

std::string memory_against_length(const TrainingRequest& request, const TrainingPlan& p) {
  base::StackedBars bars = memory_bars("Memory by part against sequence length", request);
  const int64_t longest = std::max<int64_t>(request.model.max_positions, 2 * p.parallel.seq_len);
  const double enough = 3 * request.cluster.device.memory_bytes;  // a bar far past the limit only shrinks the others
  std::vector<int64_t> lengths{p.parallel.seq_len};
  for (int64_t length = 1024; length <= std::min<int64_t>(longest, 131072); length *= 2) lengths.push_back(length);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  double total = 0;
  for (const int64_t length : lengths) {
    if (total >= enough && length > p.parallel.seq_len) break;
    spec::ParallelSpec s = p.parallel;
    s.seq_len = length;
    plan::MemoryParts worst = plan::plan_memory(p.shape, s, request.software).worst().device;
    total = worst.total();
    add_memory_bar(bars, fmt::format("{} tokens{}", length, length == p.parallel.seq_len ? " (plan)" : ""), worst,
                   fmt::format("{:.1f} GiB", worst.total() / 0x1p30));
  }
  return base::stacked_bars_svg(bars);
}

std::string memory_of_stages(const TrainingRequest& request, const TrainingPlan& p) {
  base::StackedBars bars = memory_bars("Memory by pipeline stage", request);
  for (const plan::StageMemory& stage : p.memory.stages) {
    add_memory_bar(bars, fmt::format("stage {} ({} layers)", stage.stage, stage.num_layers), stage.device,
                   fmt::format("{:.1f} GiB", stage.device.total() / 0x1p30));
  }
  return base::stacked_bars_svg(bars);
}

std::string layouts_chart(const TrainingPlan& p) {
  base::StackedBars bars;
  bars.title = "Layouts: step time by cause";
  bars.unit = "seconds per step";
  bars.parts.assign(plan::kTimePartNames.begin(), plan::kTimePartNames.end());
  std::vector<bool> used(bars.parts.size(), false);
  for (const plan::Candidate& layout : p.layouts) {
    base::StackedBars::Bar bar;
    bar.label = spec::describe(layout.parallel);
    auto values = plan::part_values(layout.step.time);
    bar.values.assign(values.begin(), values.end());
    for (size_t i = 0; i < values.size(); ++i) used[i] = used[i] || values[i] > 0.002 * layout.step.seconds;
    bar.note = fmt::format("{:.3g} s, MFU {:.1f} %", layout.step.seconds, 100 * layout.step.mfu);
    bars.bars.push_back(std::move(bar));
  }
  for (size_t i = used.size(); i-- > 0;) {  // parts nobody spends time on need no legend
    if (used[i]) continue;
    bars.parts.erase(bars.parts.begin() + static_cast<long>(i));
    for (auto& bar : bars.bars) bar.values.erase(bar.values.begin() + static_cast<long>(i));
  }
  return base::stacked_bars_svg(bars, 860);
}

std::string layouts_table(const TrainingRequest& request, const TrainingPlan& p) {
  std::vector<std::vector<std::string>> rows;
  bool has_marks = false;
  for (const plan::Candidate& layout : p.layouts) {
    const bool is_marked = request.software.name == "sinter" && !spec::untrained_keys(layout.parallel).empty();
    has_marks = has_marks || is_marked;
    rows.push_back({spec::describe(layout.parallel) + (is_marked ? " *" : ""),
                    base::format_duration(layout.step.seconds), fmt::format("{:.1f} %", 100 * layout.step.mfu),
                    base::format_bytes(layout.memory.device.total()), rows.empty() ? "the best" : layout.why});
  }
  return base::html_table({"layout", "step", "MFU", "memory", "why not"}, rows) +
         (has_marks ? "<p>* not in <code>sinter train</code> yet</p>\n" : "");
}

// A row per pipeline stage; one micro-batch after another where there is no pipeline. Long steps are cut to be legible.
std::string timeline(const TrainingRequest& request, const TrainingPlan& p) {
  spec::ParallelSpec s = p.parallel;
  const int64_t shown = std::max<int64_t>(4 * s.pp, 8);
  if (s.micro_batches() > shown) s.global_batch = shown * s.micro_batch * s.dp();
  const plan::Efficiency efficiency =
      plan::find_efficiency(request.cluster.device, request.software.name, request.format);
  plan::TimeModel time(p.shape, s, request.cluster, request.software, efficiency, request.format);
  plan::SimulationInput input = plan::simulation_input(time, s, request.software);
  plan::Simulation result = plan::simulate(input);
  std::string title = fmt::format("{} of {} micro-batches, {} stage{}", s.micro_batches(), p.parallel.micro_batches(),
                                  s.pp, s.pp == 1 ? "" : "s");
  return plan::timeline_svg(result.slowest, title);
}

// What is not possible: in memory, or in our trainer as it is today.
std::string banner(const TrainingRequest& request, const TrainingPlan& p) {
  std::string text;
  if (!p.fits)
    text = fmt::format("Does not fit {}: the smallest layout needs {}.", request.cluster.device.name,
                       base::format_bytes(p.memory.worst().device.total()));
  if (p.trained)
    text += fmt::format("{}sinter train does not do {} yet; {}.", text.empty() ? "" : " ",
                        fmt::join(spec::untrained_keys(p.parallel), ", "),
                        p.trained->fits ? "the best it runs is " + spec::describe(p.trained->layout.parallel)
                                        : std::string("nothing that it runs fits"));
  const char* kind = p.fits && p.trained && p.trained->fits ? "banner note" : "banner";
  return text.empty() ? "" : fmt::format("<p class=\"{}\">{}</p>\n", kind, base::escape_html(text));
}

}  // namespace

std::string training_plan_html(const std::string& model, const TrainingRequest& request, const TrainingPlan& p) {
  std::vector<base::PageSection> sections;
  const plan::MemoryParts& worst = p.memory.worst().device;
  sections.push_back(
      {"Summary", "",
       banner(request, p) +
           base::html_table(
               {"quantity", "value"},
               {{"parameters", base::format_grouped(p.shape.total_parameters())},
                {"cluster", fmt::format("{} x {}, {} node{}", request.cluster.num_devices, request.cluster.device.name,
                                        request.cluster.num_nodes(), request.cluster.num_nodes() == 1 ? "" : "s")},
                {"layout", spec::describe(p.parallel)},
                {"memory per device",
                 fmt::format("{} of {}{}", base::format_bytes(worst.total()),
                             base::format_bytes(request.cluster.device.memory_bytes), p.fits ? "" : ": does not fit")},
                {"step",
                 fmt::format("{}, {} tokens/s, MFU {:.1f} %, HFU {:.1f} %", base::format_duration(p.step.seconds),
                             base::format_count(p.step.tokens_per_second), 100 * p.step.mfu, 100 * p.step.hfu)},
                {"run", fmt::format("{} tokens in {}, {} GPU hours", base::format_count(p.tokens),
                                    base::format_duration(p.cost.days * 86400), format_whole(p.cost.gpu_hours))},
                {"constants", plan::efficiency_source(request.cluster.device, request.software.name, request.format)},
                {"money", fmt::format("{} at ${:.2f} per device and hour", format_money(p.cost.money),
                                      request.cluster.price_per_hour)},
                {"energy and carbon",
                 fmt::format("{}, {}", format_energy(p.cost.energy_kwh), format_carbon(p.cost.co2_tonnes))}})});
  sections.push_back({"Memory by part against sequence length",
                      "The chosen layout with other lengths; the dashed line is the device's memory.",
                      memory_against_length(request, p)});
  if (p.memory.stages.size() > 1) sections.push_back({"Memory by pipeline stage", "", memory_of_stages(request, p)});
  if (!p.layouts.empty())
    sections.push_back(
        {"Layouts", "The fastest that fit, the chosen one first.", layouts_chart(p) + layouts_table(request, p)});
  if (std::string svg = timeline(request, p); !svg.empty()) {
    sections.push_back({"Timeline of one step", "One pipeline, a row per stage, as the simulator runs it.", svg});
  }
  std::string explanation;
  for (const ExplainedLine& line : explain_training_plan(request, p)) {
    explanation += fmt::format("{}\n    = {}\n{}    = {}\n", line.name, line.formula,
                               line.numbers.empty() ? "" : "    = " + line.numbers + "\n", line.result);
  }
  sections.push_back({"How each number comes about", "", "<pre>" + base::escape_html(explanation) + "</pre>\n"});
  return base::html_page(
      fmt::format("Training plan: {} on {} x {}", model, request.cluster.num_devices, request.cluster.device.name),
      sections);
}

}  // namespace sinter::cli
