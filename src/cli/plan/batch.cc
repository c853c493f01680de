// `sinter plan batch`: critical batch size and batch schedules.
#include "plan/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct BatchOptions {
  std::string model, tokens, schedule, first = "1M", largest = "128M", law = std::string(plan::kDefaultLaw),
                                       critical = "minimax-01";
  std::vector<double> losses;
  std::string batch;
  bool json = false, explain = false;
};

json stages_json(const std::vector<plan::BatchStage>& stages) {
  json out = json::array();
  for (const plan::BatchStage& s : stages)
    out.push_back({{"from_tokens", s.from_tokens}, {"batch_tokens", s.batch_tokens}});
  return out;
}

void print_stages(const std::vector<plan::BatchStage>& stages, double total) {
  base::Table table({"from token", "batch (tokens)", "steps", "until token"});
  for (size_t i = 0; i < stages.size(); ++i) {
    double end = i + 1 < stages.size() ? stages[i + 1].from_tokens : total;
    table.add_row(
        {base::format_count(stages[i].from_tokens), base::format_count(stages[i].batch_tokens),
         base::format_grouped(std::max(1LL, std::llround((end - stages[i].from_tokens) / stages[i].batch_tokens))),
         base::format_count(end)});
  }
  fmt::print("{}Steps in all: {}\n", table.to_string(), base::format_grouped(plan::count_steps(stages, total)));
}

void run_batch(const BatchOptions& o) {
  const plan::ScalingLaw& law = plan::scaling_law(o.law);
  const plan::CriticalBatchLaw& critical = plan::critical_batch_law(o.critical);
  json out;
  std::vector<ExplainedLine> why;
  std::vector<double> losses = o.losses;
  double parameters = 0, total = 0;
  if (!o.model.empty()) {
    parameters = static_cast<double>(spec::count_parameters(plan::resolve_model(o.model).spec).active);
    total = o.tokens.empty() ? 20 * parameters : plan::parse_count(o.tokens, "--tokens");
    losses.push_back(law.loss(parameters, total));
  } else if (!o.tokens.empty()) {
    total = plan::parse_count(o.tokens, "--tokens");
  }
  if (losses.empty() && o.schedule.empty()) losses = {2.22, 1.98, 1.77, 1.58};
  for (double loss : losses) {
    if (!(loss > 0)) base::fail_usage("a loss of {}; expected more than 0 nats per token", loss);
  }
  base::Table table({"loss", "minimax-01", "kaplan"});
  out["critical_batch"] = json::array();
  for (double loss : losses) {
    json row{{"loss", loss}};
    std::vector<std::string> cells{fmt::format("{:.3f}", loss)};
    for (const plan::CriticalBatchLaw& c : plan::critical_batch_laws()) {
      row[std::string(c.name)] = c.at(loss);
      cells.push_back(base::format_count(c.at(loss)));
      why.push_back({fmt::format("critical batch at loss {:.3f} ({})", loss, c.name),
                     "scale (L / reference)^-exponent tokens",
                     fmt::format("{:g} ({:.3f} / {:g})^-{:g}", c.scale, loss, c.reference, c.exponent),
                     base::format_count(c.at(loss))});
    }
    out["critical_batch"].push_back(row);
    table.add_row(cells);
  }
  std::vector<plan::BatchStage> stages;
  if (!o.schedule.empty()) {
    if (total == 0) base::fail_usage("--schedule needs --tokens, the length of the run");
    stages = plan::parse_batch_schedule(o.schedule);
  } else if (parameters > 0) {
    stages = plan::make_batch_schedule(law, critical, parameters, total, plan::parse_count(o.first, "--first"),
                                       plan::parse_count(o.largest, "--largest"));
  }
  if (!stages.empty()) {
    out["schedule"] = stages_json(stages);
    out["tokens"] = total;
    out["steps"] = plan::count_steps(stages, total);
  }
  std::string batch_text;
  if (!o.batch.empty() && !losses.empty()) {
    double batch = plan::parse_count(o.batch, "--batch"), crit = critical.at(losses.back());
    plan::BatchCost cost = plan::cost_of_batch(batch, crit);
    out["batch"] = {
        {"tokens", batch}, {"critical", crit}, {"steps_ratio", cost.steps_ratio}, {"tokens_ratio", cost.tokens_ratio}};
    batch_text =
        fmt::format("A batch of {} against a critical {}: {:.2f} x the fewest steps, {:.2f} x the fewest tokens.\n",
                    base::format_count(batch), base::format_count(crit), cost.steps_ratio, cost.tokens_ratio);
    why.push_back({"cost of the batch", "steps: 1 + B_crit / B; tokens: 1 + B / B_crit",
                   fmt::format("1 + {:.4g} / {:.4g}; 1 + {:.4g} / {:.4g}", crit, batch, batch, crit),
                   fmt::format("{:.3f}; {:.3f}", cost.steps_ratio, cost.tokens_ratio)});
  }
  if (o.json) return print_json(out);
  if (!losses.empty()) fmt::print("Critical batch size in tokens, by the name of the law\n{}", table.to_string());
  if (parameters > 0)
    fmt::print("Losses by the scaling law '{}'; N = {} active parameters.\n", law.name, base::format_count(parameters));
  if (!batch_text.empty()) fmt::print("{}", batch_text);
  if (!stages.empty()) {
    fmt::print("\nBatch schedule over {} tokens{}\n", base::format_count(total),
               o.schedule.empty() ? fmt::format(" ({})", critical.name) : "");
    print_stages(stages, total);
  }
  if (o.explain) print_explanation(why);
}

}  // namespace

void add_plan_batch(Command plan) {
  auto o = std::make_shared<BatchOptions>();
  const Command c = plan.add_verb("batch", "critical batch size, batch schedules and their steps");
  c.footer(
      "Examples:\n  sinter plan batch llama-3-8b --tokens 15T\n  sinter plan batch --schedule 16M@0,32M@69B --tokens "
      "790B");
  c.option("model", &o->model, "model: its predicted loss gives the critical batch and a schedule");
  c.option("--loss", &o->losses, "losses to tell the critical batch for");
  c.option("--tokens", &o->tokens, "training tokens, such as 10.4T (default with a model: 20 per parameter)");
  c.option("--schedule", &o->schedule, "a schedule to count, such as 16M@0,32M@69B,64M@790B,128M@4.7T");
  c.option("--batch", &o->batch, "a batch in tokens to compare with the critical one");
  c.option("--first", &o->first, "first batch of a made schedule, tokens").shows_default();
  c.option("--largest", &o->largest, "largest batch of a made schedule, tokens").shows_default();
  c.option("--law", &o->law, "scaling law for the loss: epoch, hoffmann, hoffmann-unrounded, kaplan").shows_default();
  c.option("--critical", &o->critical, "critical batch law: minimax-01, kaplan").shows_default();
  c.flag("--json", &o->json, "print JSON");
  c.flag("--explain", &o->explain, "print each formula with the numbers put in");
  c.on_run([o] { run_batch(*o); });
}

}  // namespace sinter::cli
