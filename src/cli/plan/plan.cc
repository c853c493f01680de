// `sinter plan MODEL`: parameters, FLOPs, memory, time and cost; and its subcommands.
#include "cli/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/report.h"
#include "cli/plan/verbs.h"
#include "cli/verbs.h"
#include "plan/batch.h"
#include "plan/flops.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct PlanOptions {
  std::string model, tokens, recompute, html, software = "sinter", format = "bf16", grid = "world";
  ClusterOptions cluster;
  plan::LayoutWish wish;
  int64_t seq_len = 0, batch = 0;
  double pue = 1.2;  // of a good data centre
  MeasureOptions measuring;
  bool json = false, explain = false, measure = false;
};

void print_parameters(const spec::ModelSpec& spec, json& out, bool as_json, std::vector<ExplainedLine>& why) {
  spec::ParameterCounts counts = spec::count_parameters(spec);
  out["parameters"] = {{"total", counts.total},
                       {"active", counts.active},
                       {"embedding", counts.embedding},
                       {"position", counts.position},
                       {"head", counts.head}};
  for (const plan::FormulaCount& f : plan::parameter_formulas(spec)) {
    out["parameter_formulas"].push_back({{"name", f.name}, {"formula", f.formula}, {"value", f.value}});
    why.push_back(
        {"parameters by formula: " + f.name, f.formula, "", base::format_grouped(static_cast<int64_t>(f.value))});
  }
  if (as_json) return;
  base::Table table({"parameters", "count", "share"});
  auto row = [&](const char* name, int64_t n) {
    if (n > 0)
      table.add_row({name, base::format_grouped(n),
                     fmt::format("{:.1f} %", 100.0 * static_cast<double>(n) / static_cast<double>(counts.total))});
  };
  row("total", counts.total);
  if (counts.active != counts.total) row("active per token", counts.active);
  row("token embedding", counts.embedding);
  row("positions", counts.position);
  row("head", counts.head);
  row("blocks", counts.total - counts.embedding - counts.position - counts.head);
  fmt::print("{}\n", table.to_string());
}

// Three places after the point, and three digits of what is smaller than they show.
std::string format_gflop(double flops) {
  return flops < 1e8 ? fmt::format("{:.3g}", flops / 1e9) : fmt::format("{:.3f}", flops / 1e9);
}

void print_flops(const spec::ModelSpec& spec, double seq_len, json& out, bool as_json, bool in_full,
                 std::vector<ExplainedLine>& why) {
  plan::FlopBasis basis = plan::make_flop_basis(spec);
  base::Table table({"convention", "GFLOP per token", "attention", "counts", "formula"});
  for (const plan::FlopConvention& c : plan::flop_conventions()) {
    plan::FlopsPerToken f = plan::train_flops_per_token(basis, seq_len, c);
    out["flops_per_token"][std::string(c.name)] = {
        {"total", f.total()},
        {"attention", f.attention},
        {"forward", plan::forward_flops_per_token(basis, seq_len, c).total()}};
    table.add_row({std::string(c.name), format_gflop(f.total()), fmt::format("{:.1f} %", 100 * f.attention / f.total()),
                   c.counts_hardware ? "hardware" : "model", "C = " + std::string(c.formula)});
    why.push_back({fmt::format("training FLOPs per token ({})", c.name), std::string(c.formula),
                   fmt::format("{:.6g} + {:g} x {:g} x {:g}", f.parameters, c.attention_factor, basis.attention_width,
                               plan::attended_keys(basis, seq_len)),
                   fmt::format("{:.6g}", f.total())});
  }
  if (as_json) return;
  if (in_full) {
    fmt::print("Training FLOPs per token at {} tokens of context (forward: one third)\n{}\n", seq_len,
               table.to_string());
  } else {
    const double flops = plan::train_flops_per_token(basis, seq_len, plan::flop_convention("megatron")).total();
    fmt::print("Training takes {} GFLOP a token at {} tokens of context (--explain: all conventions)\n\n",
               format_gflop(flops), seq_len);
  }
}

plan::TrainingRequest make_request(const PlanOptions& o, const spec::ModelSpec& spec, int64_t seq_len) {
  plan::TrainingRequest r;
  r.model = spec;
  r.cluster = make_cluster(o.cluster);
  r.software = plan::find_software(o.software);
  r.format = parse_trained_format(o.format);
  r.wish = o.wish;
  if (!o.recompute.empty()) r.wish.recompute = parse_option("--recompute", o.recompute, spec::parse_recompute);
  r.seq_len = seq_len;
  r.global_batch = o.batch;
  if (!o.tokens.empty()) r.tokens = plan::parse_count(o.tokens, "--tokens");
  r.kg_co2_per_kwh = plan::parse_grid(o.grid);
  r.pue = o.pue;
  return r;
}

// What make_request() would refuse, also where no cluster is given and nothing asks for it.
void check_names(const PlanOptions& o) {
  plan::find_software(o.software);
  parse_trained_format(o.format);
  plan::parse_grid(o.grid);
  if (!o.recompute.empty()) parse_option("--recompute", o.recompute, spec::parse_recompute);
  if (!o.tokens.empty()) plan::parse_count(o.tokens, "--tokens");
  const plan::HardwareTable table = make_hardware(o.cluster);
  if (!o.cluster.network.empty()) table.network(o.cluster.network);
}

void check_lengths(const PlanOptions& o) {
  constexpr int64_t kMost = int64_t{1} << 30;
  for (auto [option, value] :
       {std::pair{"--seq-len", o.seq_len}, {"--batch", o.batch}, {"--micro-batch", o.wish.micro_batch}}) {
    if (value > kMost) base::fail_usage("{} is {}; the most is {}", option, value, kMost);
  }
}

void run_plan(const PlanOptions& o) {
  plan::ResolvedModel model = plan::resolve_model(o.model);
  const spec::ModelSpec& m = model.spec;
  check_lengths(o);
  check_names(o);
  const int64_t seq_len = choose_seq_len(o.seq_len, m);
  // A wish that cannot be met is told before anything is printed.
  std::optional<plan::TrainingRequest> request;
  plan::TrainingPlan training;
  if (!o.cluster.gpus.empty()) {
    request = make_request(o, m, seq_len);
    training = plan::make_training_plan(*request);
  } else if (!o.html.empty()) {
    base::fail_usage("--html needs a cluster: give --gpus, for example --gpus 8xH100");
  }
  json out{{"model", model.name}, {"family", spec::family_name(m.family)}};
  std::vector<ExplainedLine> why;
  if (!o.json) {
    fmt::print("{} ({}): {} layers, hidden {}, {} heads, {} KV heads, ffn {}, vocab {}\n\n", model.name,
               spec::family_name(m.family), m.num_layers, m.hidden, m.num_heads, m.num_kv_heads,
               m.moe.num_experts > 0 ? m.moe.ffn : m.ffn, m.vocab_size);
  }
  if (!o.json && m.max_positions > 0 && seq_len > m.max_positions)
    base::log_warning("--seq-len {} is beyond the {} positions that the model is made for", seq_len, m.max_positions);
  if (request && !o.json) print_answer(*request, training);
  print_parameters(m, out, o.json, why);
  print_flops(m, static_cast<double>(seq_len), out, o.json, o.explain, why);
  if (request) {
    out.update(training_plan_json(*request, training));
    if (!o.json) print_training_plan(*request, training);
    for (ExplainedLine& line : explain_training_plan(*request, training)) why.push_back(std::move(line));
    if (!o.html.empty()) {
      base::write_file_atomic(o.html, training_plan_html(model.name, *request, training));
      if (!o.json) fmt::print("\nWrote {}\n", o.html);
    }
  } else if (!o.json) {
    fmt::print("Give --gpus (for example --gpus 64xH100) for memory, time and cost.\n");
  }
  if (o.json) return print_json(out);
  if (o.explain) print_explanation(why);
}

// `plan searh gpt2` has a model called searh as far as the parser knows. What to say to it, or "".
std::string misspelt_subcommand(Command plan, const std::string& word) {
  std::error_code ignored;
  if (plan::find_preset(word) || word.ends_with(".json") || std::filesystem::exists(word, ignored)) return "";
  const std::string nearest = base::nearest_name(word, plan.verb_names());
  return nearest.empty()
             ? ""
             : fmt::format("'{}' is neither a model nor a subcommand; did you mean `sinter plan {}`?", word, nearest);
}

}  // namespace

void add_plan(Command app) {
  auto o = std::make_shared<PlanOptions>();
  const Command plan = app.add_verb("plan", "parameters, FLOPs, memory, time, cost, layouts, scaling laws");
  plan.option("model", &o->model, "a model's name (see `plan models`), a Hugging Face folder or a config.json")
      .check([plan](const std::string& word) { return misspelt_subcommand(plan, word); });
  plan.option("--seq-len", &o->seq_len,
              "sequence length (default: 4096, or the model's own limit where that is smaller)")
      .at_least(1);
  add_cluster_options(plan, o->cluster, "");
  plan.option("--tokens", &o->tokens, "training tokens, such as 15.6T (default: 20 per parameter)");
  plan.option("--batch", &o->batch, "sequences per optimizer step (default: 0.5M to 16M tokens by the model's size)")
      .at_least(1);
  plan.option("--micro-batch", &o->wish.micro_batch, "sequences per forward pass (default: chosen)").at_least(1);
  plan.option("--tp", &o->wish.tp, "tensor parallel width (default: chosen)").at_least(1);
  plan.option("--pp", &o->wish.pp, "pipeline stages (default: chosen)").at_least(1);
  plan.option("--cp", &o->wish.cp, "context parallel width (default: chosen)").at_least(1);
  plan.option("--ep", &o->wish.ep, "expert parallel width (default: chosen)").at_least(1);
  plan.option("--zero", &o->wish.zero, "ZeRO stage 0 to 3 (default: chosen)").in_range(0, 3);
  plan.option("--shard", &o->wish.shard, "ranks among which ZeRO divides state (default: all data-parallel ranks)")
      .at_least(1);
  plan.option("--recompute", &o->recompute, "none, selective or full (default: chosen)");
  plan.option("--format", &o->format, format_help()).shows_default();
  plan.option("--software", &o->software, software_help()).shows_default();
  plan.option("--grid", &o->grid, grid_help()).shows_default();
  plan.option("--pue", &o->pue, "power of the building over power of the devices").shows_default().at_least(1);
  plan.option("--html", &o->html, "write one page of charts to this file");
  plan.flag("--measure", &o->measure, "benchmark this machine and save it as a device in your hardware file");
  add_measure_options(plan, o->measuring);
  plan.flag("--json", &o->json, "print JSON");
  plan.flag("--explain", &o->explain, "print each formula with the numbers put in");
  add_plan_devices(plan);
  add_plan_scaling(plan);
  add_plan_fit(plan);
  add_plan_batch(plan);
  add_plan_cost(plan);
  add_plan_inference(plan);
  add_plan_check(plan);
  add_plan_search(plan);
  add_plan_simulate(plan);
  plan.footer(
      "Examples:\n"
      "  sinter plan llama-3.1-8b --gpus 64xH100\n"
      "  sinter plan my-model/ --gpus 2x8xA100-80GB --tokens 300B --html plan.html\n"
      "  sinter plan gpt2 --explain\n"
      "  sinter plan --measure");
  plan.on_run([plan, o] {
    if (plan.was_verb_named()) return;
    if (o->measure) return run_measure(o->measuring, o->cluster.hardware, o->json);
    if (o->measuring.check_only) base::fail_usage("--check-only goes with --measure");
    if (o->model.empty())
      base::fail_usage(
          "name a model, for example `sinter plan llama-3.1-8b --gpus 8xH100`, or a subcommand (see --help)");
    run_plan(*o);
  });
}

}  // namespace sinter::cli
