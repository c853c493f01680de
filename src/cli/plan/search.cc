// `sinter plan search MODEL --gpus ...`: the best layouts, why the others lose, a recipe and a job script.
#include "plan/search.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/help.h"
#include "cli/plan/plan.h"
#include "cli/plan/verbs.h"
#include "plan/models.h"
#include "plan/training_plan.h"
#include "spec/parameters.h"
#include "spec/trained_layouts.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct SearchOptions {
  ClusterOptions cluster;
  std::string model, recompute, format = "bf16", gradients = "f32", moments = "f32", recipe_out, slurm_out,
                                job = "sinter";
  plan::SearchRequest request;
  double hours = 24;
  bool json = false, offload_optimizer = false, force = false;
};

json candidate_json(const plan::Candidate& c) {
  const spec::ParallelSpec& p = c.parallel;
  json parts, causes;
  std::array<double, 8> memory = plan::part_values(c.memory.device);
  for (size_t i = 0; i < memory.size(); ++i) parts[std::string(plan::kMemoryPartNames[i])] = memory[i];
  std::array<double, plan::kNumTimeParts> time = plan::part_values(c.step.time);
  for (size_t i = 0; i < time.size(); ++i) causes[std::string(plan::kTimePartNames[i])] = time[i];
  return {{"layout", spec::describe(p)},
          {"dp", p.dp()},
          {"shard", p.shard},
          {"replica", p.replica},
          {"tp", p.tp},
          {"pp", p.pp},
          {"interleave", p.interleave},
          {"cp", p.cp},
          {"ep", p.ep},
          {"zero", p.zero},
          {"micro_batch", p.micro_batch},
          {"recompute", spec::recompute_name(p.recompute)},
          {"seconds", c.step.seconds},
          {"tokens_per_second", c.step.tokens_per_second},
          {"mfu", c.step.mfu},
          {"hfu", c.step.hfu},
          {"memory_bytes", c.memory.device.total()},
          {"memory_parts", parts},
          {"time_parts", causes},
          {"untrained", spec::untrained_keys(p)},
          {"why", c.why}};
}

void print_table(const SearchOptions& o, const plan::SearchResult& result, const spec::ParallelSpec& written,
                 const std::string& recipe) {
  fmt::print("{} on {} x {}, {} sequences of {} tokens: {} layouts considered, {} fit in {}\n\n", o.model,
             o.request.cluster.num_devices, o.request.cluster.device.name, o.request.global_batch, o.request.seq_len,
             result.considered, result.fitting, base::format_bytes(result.usable_bytes));
  if (std::string note = format_note(o.request.cluster.device, o.request.format); !note.empty())
    fmt::print("{}\n\n", note);
  const bool is_ours = o.request.software == "sinter";
  bool has_untrained = false;
  base::Table table({"layout", "step", "tokens/s", "MFU", "memory", "why not"});
  for (const plan::Candidate& c : result.best) {
    const bool is_trained = spec::untrained_keys(c.parallel).empty();
    has_untrained = has_untrained || !is_trained;
    table.add_row({spec::describe(c.parallel) + (is_trained || !is_ours ? "" : " *"),
                   base::format_duration(c.step.seconds), base::format_count(c.step.tokens_per_second),
                   fmt::format("{:.1f} %", 100 * c.step.mfu), base::format_bytes(c.memory.device.total()),
                   c.why.empty() ? "the best" : c.why});
  }
  fmt::print("{}", table.to_string());
  if (has_untrained && is_ours) {
    fmt::print("* not in `sinter train` yet; {}\n",
               spec::untrained_keys(written).empty()
                   ? "the recipe is for the best it runs, " + spec::describe(written)
                   : "none of what it runs fits (--trained shows what it would need)");
  }
  fmt::print(
      "{}", wrap_text("Constants: " +
                          plan::efficiency_source(o.request.cluster.device, o.request.software, o.request.format) + ".",
                      0, 100));
  if (!result.rejected.empty()) fmt::print("\nnot possible:\n");
  for (const plan::Rejection& r : result.rejected) {
    fmt::print("  {:6}  {} (such as {})\n", r.count, r.reason, spec::describe(r.example));
  }
  if (o.recipe_out.empty()) {
    fmt::print("\n{}", recipe);
  } else {
    fmt::print("\nWrote {}; fill in what says FILL IN.\n", o.recipe_out);
  }
  if (!o.slurm_out.empty()) {
    fmt::print("Wrote {}{}\n", o.slurm_out,
               o.recipe_out.empty() ? "; it starts recipe.toml: give --recipe, or save the recipe above as that" : "");
  }
}

void fail_with_smallest(const SearchOptions& o, const plan::SearchResult& result) {
  if (!result.nothing_fits) {
    std::string reasons;
    for (const plan::Rejection& r : result.rejected) {
      reasons += fmt::format("\n  {:6}  such as {}: {}", r.count, spec::describe(r.example),
                             spec::layout_problem(r.example, o.request.model));
    }
    base::fail_usage("no layout of {} on {} devices is valid for a batch of {} sequences of {} tokens{}{}", o.model,
                     o.request.cluster.num_devices, o.request.global_batch, o.request.seq_len,
                     reasons.empty() ? "" : ":", reasons);
  }
  std::string fixed;
  const plan::SearchRequest& r = o.request;
  for (auto [name, is_fixed] : {std::pair{"--tp", r.tp > 0},
                                {"--pp", r.pp > 0},
                                {"--cp", r.cp > 0},
                                {"--ep", r.ep > 0},
                                {"--zero", r.zero >= 0},
                                {"--shard", r.shard > 0},
                                {"--micro-batch", r.micro_batch > 0},
                                {"--recompute", !o.recompute.empty()}}) {
    if (is_fixed) fixed += fmt::format("{}{}", fixed.empty() ? "" : ", ", name);
  }
  base::fail("{} does not fit {} x {}: the smallest layout, {}, needs {} of {}; {}", o.model, r.cluster.num_devices,
             r.cluster.device.name, spec::describe(result.smallest),
             base::format_bytes(result.smallest_memory.device.total()), base::format_bytes(result.usable_bytes),
             fixed.empty() ? "use more devices or shorter sequences"
                           : fmt::format("leave {} open, or use shorter sequences", fixed));
}

// What the recipe is for: the best layout that `sinter train` runs, or the best of all where none of those fits.
spec::ParallelSpec recipe_layout(const plan::SearchRequest& request, const plan::SearchResult& result) {
  const spec::ParallelSpec& best = result.best[0].parallel;
  if (spec::untrained_keys(best).empty()) return best;
  plan::SearchRequest trained = request;
  trained.trained_only = true;
  const plan::SearchResult found = plan::search_layouts(trained);
  return found.best.empty() ? best : found.best[0].parallel;
}

void run_search(SearchOptions& o) {
  plan::SearchRequest& r = o.request;
  for (char c : o.job) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && std::string_view("._-").find(c) == std::string_view::npos)
      base::fail_usage("--job '{}': a job's name is made of letters, digits, '.', '_' and '-'", o.job);
  }
  const plan::ResolvedModel model = plan::resolve_model(o.model);
  r.model = model.spec;
  r.seq_len = choose_seq_len(r.seq_len, r.model);
  r.cluster = make_cluster(o.cluster);
  r.format = parse_trained_format(o.format);
  if (r.format == plan::MatrixFormat::fp32 || r.format == plan::MatrixFormat::tf32) r.base.compute = base::DType::f32;
  if (r.format == plan::MatrixFormat::fp16) r.base.compute = base::DType::f16;
  r.base.main_gradients = parse_option("--main-gradients", o.gradients, base::parse_dtype);
  r.base.moments = parse_option("--moments", o.moments, base::parse_dtype);
  r.base.offload.optimizer = o.offload_optimizer;
  if (!o.recompute.empty()) r.recompute = {parse_option("--recompute", o.recompute, spec::parse_recompute)};
  if (r.global_batch == 0) {
    const auto active = static_cast<double>(spec::count_parameters(r.model).active);
    r.global_batch = plan::usual_global_batch(active, r.seq_len, r.cluster.num_devices, r.micro_batch);
    while (r.global_batch < r.cluster.num_devices) r.global_batch *= 2;
  }
  if (!o.slurm_out.empty() && o.slurm_out == o.recipe_out)
    base::fail_usage("--recipe and --slurm are both '{}'; name two files", o.slurm_out);
  plan::SearchResult result = plan::search_layouts(r);
  if (result.best.empty()) fail_with_smallest(o, result);
  const spec::ParallelSpec best = recipe_layout(r, result);
  const std::string recipe = plan::training_recipe(r, model, best);
  if (!o.recipe_out.empty()) base::write_new_file(o.recipe_out, recipe, o.force);
  if (!o.slurm_out.empty()) {
    std::string path = o.recipe_out.empty() ? "recipe.toml" : o.recipe_out;
    base::write_new_file(o.slurm_out, plan::slurm_script(best, r.cluster, path, o.job, o.hours), o.force);
    if (o.recipe_out.empty()) base::write_new_file(path, recipe, o.force);
  }
  if (!o.json) return print_table(o, result, best, recipe);
  json out{{"considered", result.considered},
           {"fitting", result.fitting},
           {"usable_bytes", result.usable_bytes},
           {"computed_in", plan::format_name(r.cluster.device.compute_format(r.format))},
           {"recipe", recipe}};
  for (const plan::Candidate& c : result.best) out["layouts"].push_back(candidate_json(c));
  for (const plan::Rejection& rejection : result.rejected) {
    out["rejected"].push_back(
        {{"reason", rejection.reason}, {"count", rejection.count}, {"example", spec::describe(rejection.example)}});
  }
  print_json(out);
}

}  // namespace

void add_plan_search(Command plan) {
  auto o = std::make_shared<SearchOptions>();
  const Command search = plan.add_verb("search", "best layouts of a model on a cluster, with reasons and a job script");
  search.option("model", &o->model, "a model's name, a Hugging Face folder or a config.json").required();
  add_cluster_options(search, o->cluster, "8xH100");
  search
      .option("--batch", &o->request.global_batch,
              "sequences per step (default: 0.5M to 16M tokens by the model's size)")
      .in_range(1, 1 << 30);
  o->request.seq_len = 0;
  search.option("--seq-len", &o->request.seq_len, "tokens per sequence (default: 4096, or the model's own limit)")
      .in_range(1, 1 << 30);
  search.option("--max-tp", &o->request.max_tp, "largest tensor-parallel width").at_least(1);
  search.option("--max-pp", &o->request.max_pp, "most pipeline stages").at_least(1);
  search.option("--tp", &o->request.tp, "exactly this tensor-parallel width").at_least(1);
  search.option("--pp", &o->request.pp, "exactly this many pipeline stages").at_least(1);
  search.option("--cp", &o->request.cp, "exactly this context-parallel width").at_least(1);
  search.option("--ep", &o->request.ep, "exactly this expert-parallel width").at_least(1);
  search.option("--shard", &o->request.shard, "ranks among which ZeRO divides state").at_least(1);
  search.option("--zero", &o->request.zero, "exactly this ZeRO stage, 0 to 3").in_range(0, 3);
  search.option("--micro-batch", &o->request.micro_batch, "exactly this micro-batch").at_least(1);
  search.option("--recompute", &o->recompute, "none, selective or full");
  search.option("--memory-share", &o->request.memory_share, "share of the device's memory to plan with")
      .shows_default()
      .in_range(0.05, 1.0);
  search.option("--format", &o->format, format_help()).shows_default();
  search.option("--moments", &o->moments, "what the optimizer's moments are kept in: f32 or bf16").shows_default();
  search.option("--main-gradients", &o->gradients, "what micro-batches are summed in: f32 or bf16").shows_default();
  search.flag("--trained", &o->request.trained_only, "only layouts that `sinter train` runs today");
  search.flag("--offload-optimizer", &o->offload_optimizer, "plan master weights and moments in host memory");
  search.option("--software", &o->request.software, software_help()).shows_default();
  search.option("--top", &o->request.top, "layouts to print").shows_default().at_least(1);
  search.option("--recipe", &o->recipe_out, "write a recipe of the best layout for `sinter train` to this file");
  search.option("--slurm", &o->slurm_out, "write a batch script for the best layout to this file");
  search.option("--hours", &o->hours, "time the batch script asks for").shows_default().positive();
  search.option("--job", &o->job, "name of the job").shows_default();
  search.flag("--force", &o->force, "replace files of --recipe and --slurm that are there already");
  search.flag("--json", &o->json, "print JSON");
  search.footer(
      "Examples:\n"
      "  sinter plan search llama-3.1-8b --gpus 64xH100\n"
      "  sinter plan search llama-3.1-8b --gpus 16x8xA100-40GB --recipe run.toml --slurm job.sh");
  search.on_run([o] { run_search(*o); });
}

}  // namespace sinter::cli
