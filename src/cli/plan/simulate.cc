// `sinter plan simulate MODEL --gpus ...` or `--recipe R`: runs the pipeline's action lists through the discrete-event
// simulator.
#include "plan/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "cli/plan/verbs.h"
#include "cli/train_elsewhere.h"
#include "plan/models.h"
#include "spec/recipe.h"
#include "train/layout_choice.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct SimulateOptions {
  ClusterOptions cluster;
  spec::ParallelSpec parallel;
  std::vector<std::string> words;  // the model, or with --recipe what it changes there
  std::string recipe, schedule, recompute = "none", software = "sinter", format = "bf16", trace, svg;
  std::vector<std::string> stragglers;  // PIPELINE:STAGE:FACTOR
  double jitter = 0, checkpoint_seconds = 0, restart_seconds = 300, interval_seconds = 0;
  uint64_t seed = 0;
  bool json = false;
};

// The rank must be one of `input`'s.
plan::Straggler parse_straggler(const std::string& text, const plan::SimulationInput& input) {
  plan::Straggler s;
  char rest = 0;
  long long pipeline = 0, rank = 0;
  if (std::sscanf(text.c_str(), "%lld:%lld:%lf%c", &pipeline, &rank, &s.slowdown, &rest) != 3) {
    base::fail_usage("--straggler '{}'; expected PIPELINE:STAGE:FACTOR, for example 0:3:1.5", text);
  }
  s.pipeline = pipeline;
  s.rank = rank;
  if (pipeline < 0 || pipeline >= input.pipelines || rank < 0 || rank >= input.shape.pp) {
    base::fail_usage("--straggler '{}': there are pipelines 0 to {} of stages 0 to {}", text, input.pipelines - 1,
                     input.shape.pp - 1);
  }
  if (!(s.slowdown > 0) || !std::isfinite(s.slowdown))
    base::fail_usage("--straggler '{}': the factor is {}; expected a number above 0", text, s.slowdown);
  return s;
}

void complete_layout(SimulateOptions& o, const plan::Cluster& cluster) {
  spec::ParallelSpec& p = o.parallel;
  for (auto [name, value] :
       {std::pair{"--tp", p.tp}, {"--pp", p.pp}, {"--cp", p.cp}, {"--micro-batch", p.micro_batch}}) {
    if (value < 1) base::fail_usage("{} is {}; expected at least 1", name, value);
  }
  int64_t group = p.tp * p.pp * p.cp;
  if (cluster.num_devices % group != 0) {
    base::fail_usage("tp {} x pp {} x cp {} does not divide {} devices; the nearest number of devices is {}", p.tp,
                     p.pp, p.cp, cluster.num_devices, std::max<int64_t>(1, cluster.num_devices / group) * group);
  }
  int64_t dp = cluster.num_devices / group;
  p.shard = p.zero > 0 ? dp : 1;
  p.replica = dp / p.shard;
  p.sequence_parallel = p.tp > 1;
  if (p.global_batch == 0) p.global_batch = dp * p.micro_batch * 4 * p.pp;
  p.recompute = parse_option("--recompute", o.recompute, spec::parse_recompute);
  if (o.schedule.empty()) o.schedule = p.interleave > 1 ? "interleaved" : "1f1b";
  p.schedule = parse_option("--schedule", o.schedule, spec::parse_pipeline);
}

// Seconds of the critical path by what they were spent on.
std::map<std::string, double> critical_seconds(const plan::PipelineTimeline& timeline) {
  std::map<std::string, double> seconds;
  for (int64_t index : timeline.critical_path()) {
    const plan::SimulatedEvent& e = timeline.events[static_cast<size_t>(index)];
    bool is_transfer = e.stream == plan::Lane::communication;
    bool is_forward = e.action.kind == spec::ActionKind::forward;
    seconds[is_transfer ? "transfer" : is_forward ? "forward" : "backward"] += e.end - e.begin;
  }
  return seconds;
}

// A simulated step keeps every event of its slowest pipeline, some 400 bytes a micro-batch and stage.
constexpr int64_t kMostInAPipeline = 1'000'000, kMostInAll = 20'000'000;  // micro-batches x stages

void check_size(const SimulateOptions& o, const plan::SimulationInput& input) {
  const spec::ParallelSpec& p = o.parallel;
  const int64_t stages = p.pp * p.interleave;
  // Those that differ from the others are run through, as plan::simulate does.
  const int64_t distinct =
      o.jitter > 0 ? input.pipelines : std::min(input.pipelines, static_cast<int64_t>(input.stragglers.size()) + 1);
  int64_t most = std::min(kMostInAPipeline, kMostInAll / distinct) / stages;
  if (p.micro_batches() <= most) return;
  if (p.schedule == spec::PipelineKind::interleaved) most -= most % p.pp;
  const std::string what =
      fmt::format("--batch {}: {} micro-batches of {} stage{}{}", p.global_batch, p.micro_batches(), stages,
                  stages == 1 ? "" : "s", distinct == 1 ? "" : fmt::format(" in each of {} pipelines", distinct));
  if (most < 1) base::fail_usage("{} are too many to simulate; give fewer devices or leave out --jitter", what);
  base::fail_usage("{} are too many to simulate; the most is --batch {} ({} micro-batches){}", what,
                   most * p.micro_batch * p.dp(), most, o.jitter > 0 ? ", or leave out --jitter" : "");
}

// The model, and the layout of the options completed.
plan::ResolvedModel model_and_layout(SimulateOptions& o, const plan::Cluster& cluster) {
  if (!o.recipe.empty()) {
    const spec::Recipe recipe = spec::load_recipe(o.recipe, o.words);
    plan::ResolvedModel model;
    model.name = o.recipe;
    model.spec = spec::make_model_spec(recipe, train::vocabulary_of(recipe));
    o.parallel = spec::make_layout(recipe, cluster.num_devices);
    o.format = plan::format_name(format_of(recipe.train.precision));
    return model;
  }
  if (o.words.size() != 1) base::fail_usage("expected one model, or --recipe FILE; for example: plan simulate gpt2");
  plan::ResolvedModel model = plan::resolve_model(o.words[0]);
  o.parallel.seq_len = choose_seq_len(o.parallel.seq_len, model.spec);
  complete_layout(o, cluster);
  return model;
}

void run_simulate(SimulateOptions& o) {
  plan::Cluster cluster = make_cluster(o.cluster);
  const plan::ResolvedModel model = model_and_layout(o, cluster);
  if (const std::string problem = spec::layout_problem(o.parallel, model.spec); !problem.empty())
    base::fail_usage("layout {}: {}", spec::describe(o.parallel), problem);
  plan::ModelShape shape = plan::make_model_shape(model.spec);
  const plan::Software& software = plan::find_software(o.software);
  plan::Efficiency efficiency = plan::find_efficiency(cluster.device, software.name, plan::parse_format(o.format));
  plan::TimeModel time(shape, o.parallel, cluster, software, efficiency, plan::parse_format(o.format));
  plan::SimulationInput input = plan::simulation_input(time, o.parallel, software);
  for (const std::string& text : o.stragglers) input.stragglers.push_back(parse_straggler(text, input));
  check_size(o, input);
  input.jitter = o.jitter;
  input.seed = o.seed;
  auto begin = std::chrono::steady_clock::now();
  plan::Simulation s = plan::simulate(input);
  double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  double tokens = static_cast<double>(o.parallel.global_batch * o.parallel.seq_len);
  std::map<std::string, double> critical = critical_seconds(s.slowest);

  json out{{"layout", spec::describe(o.parallel)},
           {"schedule", spec::pipeline_name(o.parallel.schedule)},
           {"ranks", s.num_ranks},
           {"ranks_simulated", s.num_simulated},
           {"step_seconds", s.seconds},
           {"pipeline_seconds", s.pipeline_seconds},
           {"tail_seconds", input.tail},
           {"bubble", s.bubble},
           {"tokens_per_second", tokens / s.seconds},
           {"critical_path", critical},
           {"slowest_pipeline", s.slowest_pipeline},
           {"simulated_in_seconds", spent}};
  if (cluster.mtbf_hours > 0) {
    plan::FailureModel failures;
    failures.mtbf_seconds = cluster.mtbf_hours * 3600;
    failures.devices = cluster.num_devices;
    double state = static_cast<double>(shape.total_parameters()) * 14;  // weights, master, moments
    double rate = cluster.storage.write_bandwidth;
    failures.checkpoint_seconds = o.checkpoint_seconds > 0 ? o.checkpoint_seconds : rate > 0 ? state / rate : 60;
    failures.restart_seconds = o.restart_seconds;
    failures.interval_seconds = o.interval_seconds;
    plan::Goodput g = plan::expected_goodput(failures);
    out["goodput"] = {{"goodput", g.goodput},
                      {"failures_per_day", g.failures_per_day},
                      {"checkpoint_interval_seconds", g.interval_seconds},
                      {"checkpoint_seconds", failures.checkpoint_seconds},
                      {"lost_to_checkpoints", g.lost_to_checkpoints},
                      {"lost_to_failures", g.lost_to_failures}};
  }
  if (!o.trace.empty()) base::write_file_atomic(o.trace, plan::trace_json(s.slowest));
  if (!o.svg.empty()) {
    std::string title =
        fmt::format("{}: {}, {}", model.name, spec::describe(o.parallel), base::format_duration(s.seconds));
    base::write_file_atomic(o.svg, plan::timeline_svg(s.slowest, title));
  }
  if (o.json) return print_json(out);
  for (const std::string& path : {o.trace, o.svg}) {
    if (!path.empty()) fmt::print("Wrote {}\n", path);
  }
  fmt::print("{} on {} x {}: {}, {} micro-batches, {}\n\n", model.name, cluster.num_devices, cluster.device.name,
             spec::describe(o.parallel), o.parallel.micro_batches(), spec::pipeline_name(o.parallel.schedule));
  base::Table table({"quantity", "value"});
  table.add_row({"step", base::format_duration(s.seconds)});
  table.add_row({"  pipeline", base::format_duration(s.pipeline_seconds)});
  table.add_row({"  gradients and update", base::format_duration(input.tail)});
  table.add_row({"tokens/s", base::format_count(tokens / s.seconds)});
  table.add_row({"bubble", fmt::format("{:.2f} %", 100 * s.bubble)});
  for (const auto& [name, seconds] : critical)
    table.add_row({"critical path: " + name, base::format_duration(seconds)});
  table.add_row({"ranks", fmt::format("{} ({} simulated, the others are alike)", s.num_ranks, s.num_simulated)});
  if (out.contains("goodput")) {
    table.add_row({"goodput", fmt::format("{:.1f} %", 100 * out["goodput"]["goodput"].get<double>())});
    table.add_row(
        {"checkpoint every", base::format_duration(out["goodput"]["checkpoint_interval_seconds"].get<double>())});
  }
  fmt::print("{}", table.to_string());
}

}  // namespace

void add_plan_simulate(Command plan) {
  auto o = std::make_shared<SimulateOptions>();
  o->parallel.global_batch = 0;
  o->parallel.seq_len = 0;
  const Command simulate =
      plan.add_verb("simulate", "run a step's pipeline schedule event by event; timelines, stragglers, failures");
  simulate.footer(
      "Examples:\n  sinter plan simulate llama-3.1-70b --gpus 64xH100 --tp 4 --pp 4 --svg pipeline.svg\n"
      "  sinter plan simulate --recipe run.toml parallel.pp=2 --gpus 2xthis-machine --svg plan.svg\n\n"
      "SINTER_TRACE=run.json mpirun -n 2 sinter train run.toml parallel.pp=2 draws the step that ran in the same way\n"
      "(run.json, run.json.svg).");
  simulate.option("model", &o->words,
                  "a model's name, a Hugging Face folder or a config.json; with --recipe: section.key=value ...");
  const Option recipe =
      simulate.option("--recipe", &o->recipe, "a recipe of `sinter train`: its model, layout and precision")
          .existing_file();
  add_cluster_options(simulate, o->cluster, "8xH100");
  simulate.option("--tp", &o->parallel.tp, "tensor-parallel width").shows_default().excludes(recipe);
  simulate.option("--pp", &o->parallel.pp, "pipeline stages").shows_default().excludes(recipe);
  simulate.option("--cp", &o->parallel.cp, "context-parallel width").shows_default().excludes(recipe);
  simulate.option("--interleave", &o->parallel.interleave, "model chunks per pipeline rank")
      .shows_default()
      .excludes(recipe);
  simulate.option("--schedule", &o->schedule, "gpipe, 1f1b, interleaved or zb-h1 (default: by --interleave)")
      .excludes(recipe);
  simulate.option("--zero", &o->parallel.zero, "ZeRO stage").shows_default().in_range(0, 3).excludes(recipe);
  simulate.option("--micro-batch", &o->parallel.micro_batch, "sequences of one forward pass")
      .shows_default()
      .excludes(recipe);
  simulate.option("--batch", &o->parallel.global_batch, "sequences per step (default: 4 micro-batches per stage)")
      .in_range(1, 1 << 30)
      .excludes(recipe);
  simulate.option("--seq-len", &o->parallel.seq_len, "tokens per sequence (default: 4096, or the model's own limit)")
      .in_range(1, 1 << 30)
      .excludes(recipe);
  simulate.option("--recompute", &o->recompute, "none, selective or full").shows_default().excludes(recipe);
  simulate.option("--software", &o->software, software_help()).shows_default().excludes(recipe);
  simulate.option("--format", &o->format, format_help()).shows_default().excludes(recipe);
  simulate.option("--straggler", &o->stragglers, "PIPELINE:STAGE:FACTOR, a slow rank; may be repeated");
  simulate.option("--jitter", &o->jitter, "relative standard deviation of every rank's speed").in_range(0.0, 1.0);
  simulate.option("--seed", &o->seed, "of the jitter").shows_default();
  simulate
      .option("--checkpoint-seconds", &o->checkpoint_seconds, "one checkpoint's time (default: from --write, else 60)")
      .positive();
  simulate.option("--restart-seconds", &o->restart_seconds, "from a failure to the next step")
      .shows_default()
      .at_least(0);
  simulate.option("--checkpoint-every", &o->interval_seconds, "seconds between checkpoints (default: the best)")
      .positive();
  simulate.option("--trace", &o->trace, "write the timeline for chrome://tracing or ui.perfetto.dev");
  simulate.option("--svg", &o->svg, "write the timeline as a picture");
  simulate.flag("--json", &o->json, "print JSON");
  simulate.on_run([o] { run_simulate(*o); });
}

}  // namespace sinter::cli
