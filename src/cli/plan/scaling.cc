// `sinter plan scaling`: the best model and tokens for a budget, over-training for inference, fits of a user's sweep.
#include "plan/scaling/scaling.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/batch.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct ScalingOptions {
  ClusterOptions cluster;
  std::string model, tokens, flops, inference_tokens, law = std::string(plan::kDefaultLaw), format = "bf16";
  double gpu_hours = 0, days = 0, money = 0, mfu = 0.40, loss = 0, inference_cost = 1;
  bool json = false, explain = false;
};

struct Budget {
  double flops = 0;
  std::string words;  // where it comes from
};

Budget find_budget(const ScalingOptions& o, const plan::Cluster& cluster) {
  const double rate = cluster.device.compute_rate(plan::parse_format(o.format)) * o.mfu;
  if (!(o.mfu > 0 && o.mfu <= 1)) base::fail_usage("--mfu is {}; expected a share in (0, 1]", o.mfu);
  int given = !o.flops.empty() + (o.gpu_hours != 0) + (o.days != 0) + (o.money != 0);
  if (given > 1) base::fail_usage("give one budget: --flops, --gpu-hours, --days or --money");
  auto positive = [](double value, const char* flag) {
    if (!(value > 0)) base::fail_usage("{} is {}; expected more than 0", flag, value);
  };
  const std::string at = fmt::format("at {:.0f} TFLOP/s ({:.0f} % of {}'s {} peak)", rate / 1e12, 100 * o.mfu,
                                     cluster.device.name, o.format);
  if (!o.flops.empty()) return {plan::parse_count(o.flops, "--flops"), "given"};
  if (o.gpu_hours != 0) {
    positive(o.gpu_hours, "--gpu-hours");
    return {o.gpu_hours * 3600 * rate,
            fmt::format("{} GPU hours {}", base::format_grouped(std::llround(o.gpu_hours)), at)};
  }
  if (o.days != 0) {
    positive(o.days, "--days");
    return {o.days * 86400 * static_cast<double>(cluster.num_devices) * rate,
            fmt::format("{:g} days on {} devices {}", o.days, cluster.num_devices, at)};
  }
  if (o.money != 0) {
    positive(o.money, "--money");
    if (!(cluster.price_per_hour > 0)) base::fail_usage("--money needs a price: give --price, USD per device and hour");
    return {o.money / cluster.price_per_hour * 3600 * rate,
            fmt::format("{} at ${:.2f} per hour {}", format_money(o.money), cluster.price_per_hour, at)};
  }
  return {};
}

json optimum_json(const plan::Optimum& best) {
  return {{"parameters", best.parameters},
          {"tokens", best.tokens},
          {"flops", best.flops},
          {"loss", best.loss},
          {"tokens_per_parameter", best.tokens / best.parameters}};
}

void explain_optimum(const plan::ScalingLaw& law, const plan::Optimum& best, std::vector<ExplainedLine>& why) {
  if (law.kind == plan::ScalingLaw::Kind::parametric) {
    double sum = law.alpha + law.beta, G = std::pow(law.alpha * law.A / (law.beta * law.B), 1 / sum);
    why.push_back({"G", "(alpha A / (beta B))^(1 / (alpha + beta))",
                   fmt::format("({:g} x {:g} / ({:g} x {:g}))^(1 / {:.4f})", law.alpha, law.A, law.beta, law.B, sum),
                   fmt::format("{:.6g}", G)});
    why.push_back({"best parameters", "G (C / 6)^(beta / (alpha + beta))",
                   fmt::format("{:.6g} ({:.4g} / 6)^{:.4f}", G, best.flops, law.beta / sum),
                   fmt::format("{:.4g}", best.parameters)});
  } else if (law.kind == plan::ScalingLaw::Kind::kaplan) {
    why.push_back({"best parameters", "1.3e9 (C in petaflop-days)^0.73",
                   fmt::format("1.3e9 ({:.4g} / 8.64e19)^0.73", best.flops), fmt::format("{:.4g}", best.parameters)});
  } else {
    why.push_back({"best parameters", "sqrt(C / (6 x 20))", fmt::format("sqrt({:.4g} / 120)", best.flops),
                   fmt::format("{:.4g}", best.parameters)});
  }
  why.push_back({"best tokens", "C / (6 N)", fmt::format("{:.4g} / (6 x {:.4g})", best.flops, best.parameters),
                 fmt::format("{:.4g}", best.tokens)});
  if (law.kind != plan::ScalingLaw::Kind::kaplan) {
    why.push_back({"predicted loss", "E + A / N^alpha + B / D^beta",
                   fmt::format("{:g} + {:g} / {:.4g}^{:g} + {:g} / {:.4g}^{:g}", law.E, law.A, best.parameters,
                               law.alpha, law.B, best.tokens, law.beta),
                   fmt::format("{:.4f}", best.loss)});
  }
}

void show_budget(const ScalingOptions& o, const Budget& budget, json& out, std::vector<ExplainedLine>& why) {
  base::Table table({"law", "parameters", "tokens", "tokens/param", "loss", "source"});
  out["flops"] = budget.flops;
  out["budget"] = budget.words;
  for (const plan::ScalingLaw& law : plan::scaling_laws()) {
    plan::Optimum best = plan::compute_optimal(law, budget.flops);
    out["laws"][law.name] = optimum_json(best);
    table.add_row({law.name + (law.name == o.law ? " *" : ""), base::format_count(best.parameters),
                   base::format_count(best.tokens), fmt::format("{:.1f}", best.tokens / best.parameters),
                   fmt::format("{:.3f}", best.loss), law.source});
    if (law.name == o.law) {
      explain_optimum(law, best, why);
      out["best"] = optimum_json(best);
    }
  }
  if (!o.json) {
    fmt::print("Compute-optimal training for {:.3g} FLOPs ({})\n{}* the law used below. C = 6 N D.\n", budget.flops,
               budget.words, table.to_string());
  }
}

void show_model(const ScalingOptions& o, const plan::ScalingLaw& law, json& out, double& loss) {
  spec::ParameterCounts counts = spec::count_parameters(plan::resolve_model(o.model).spec);
  // Kaplan counts no embeddings.
  const bool counts_all = law.kind != plan::ScalingLaw::Kind::kaplan;
  double n = static_cast<double>(counts_all ? counts.active
                                            : counts.active - counts.embedding - counts.position - counts.head);
  double d = o.tokens.empty() ? 20 * n : plan::parse_count(o.tokens, "--tokens");
  plan::OverTraining over = plan::over_training(law, n, d);
  loss = over.loss;
  out["model"] = {{"name", o.model},
                  {"parameters", n},
                  {"tokens", d},
                  {"loss", over.loss},
                  {"tokens_per_parameter", over.tokens_per_parameter},
                  {"extra_compute", over.extra_compute},
                  {"smaller", over.smaller},
                  {"cheapest", optimum_json(over.cheapest)}};
  if (o.json) return;
  fmt::print("\n{} on {} tokens ({:.0f} per parameter): predicted loss {:.3f}, {:.3g} FLOPs.\n", o.model,
             base::format_count(d), over.tokens_per_parameter, over.loss, 6 * n * d);
  fmt::print(
      "The cheapest way to that loss is {} parameters on {} tokens, {:.3g} FLOPs: this run takes {:.2f} x the compute\n"
      "and its model is {:.2f} x the size.\n",
      base::format_count(over.cheapest.parameters), base::format_count(over.cheapest.tokens), over.cheapest.flops,
      1 + over.extra_compute, n / over.cheapest.parameters);
}

void show_inference(const ScalingOptions& o, const plan::ScalingLaw& law, double loss, json& out,
                    std::vector<ExplainedLine>& why) {
  double tokens = plan::parse_count(o.inference_tokens, "--inference-tokens");
  plan::LifetimeOptimum best = plan::optimal_with_inference(law, loss, tokens, o.inference_cost);
  out["lifetime"] = {{"inference_tokens", tokens},
                     {"loss", loss},
                     {"best", optimum_json(best.model)},
                     {"inference_flops", best.inference_flops},
                     {"total_flops", best.total_flops},
                     {"train_only", optimum_json(best.train_only)},
                     {"train_only_total_flops", best.train_only_total}};
  why.push_back({"lifetime compute", "6 N D + 2 N D_inference x cost, at fixed loss",
                 fmt::format("6 x {:.4g} x {:.4g} + 2 x {:.4g} x {:.4g} x {:g}", best.model.parameters,
                             best.model.tokens, best.model.parameters, tokens, o.inference_cost),
                 fmt::format("{:.4g}", best.total_flops)});
  if (o.json) return;
  fmt::print("\nLoss {:.3f} and {} tokens of inference: least compute over the model's life\n", loss,
             base::format_count(tokens));
  base::Table table({"choice", "parameters", "tokens", "tokens/param", "training FLOPs", "with inference"});
  auto row = [&](const char* name, const plan::Optimum& m, double total) {
    table.add_row({name, base::format_count(m.parameters), base::format_count(m.tokens),
                   fmt::format("{:.0f}", m.tokens / m.parameters), fmt::format("{:.3g}", m.flops),
                   fmt::format("{:.3g}", total)});
  };
  row("cheapest to train", best.train_only, best.train_only_total);
  row("cheapest over its life", best.model, best.total_flops);
  fmt::print("{}", table.to_string());
}

void run_scaling(const ScalingOptions& o) {
  const plan::ScalingLaw& law = plan::scaling_law(o.law);
  plan::Cluster cluster = make_cluster(o.cluster);
  json out{{"law", law.name}};
  std::vector<ExplainedLine> why;
  double loss = o.loss;
  Budget budget = find_budget(o, cluster);
  if (budget.flops == 0 && o.model.empty() && o.loss == 0) {
    base::fail_usage(
        "nothing to scale: give a budget (--flops 1e24, --gpu-hours, --days with --gpus, --money), a model, or --loss");
  }
  if (budget.flops > 0) {
    show_budget(o, budget, out, why);
    if (loss == 0) loss = plan::compute_optimal(law, budget.flops).loss;
  }
  if (!o.model.empty()) show_model(o, law, out, loss);
  if (o.loss > 0) {
    plan::Optimum cheapest = plan::cheapest_for_loss(law, o.loss);
    out["cheapest_for_loss"] = optimum_json(cheapest);
    if (!o.json) {
      fmt::print("Cheapest training to loss {:g}: {} parameters on {} tokens, {:.3g} FLOPs.\n", o.loss,
                 base::format_count(cheapest.parameters), base::format_count(cheapest.tokens), cheapest.flops);
    }
  }
  if (!o.inference_tokens.empty()) show_inference(o, law, loss, out, why);
  if (o.json) return print_json(out);
  if (o.explain) print_explanation(why);
}

}  // namespace

void add_plan_scaling(Command plan) {
  auto o = std::make_shared<ScalingOptions>();
  const Command c =
      plan.add_verb("scaling", "compute-optimal size and tokens for a budget, predicted loss, over-training");
  c.footer("Examples:\n  sinter plan scaling llama-3-8b\n  sinter plan scaling --flops 1e23");
  c.option("model", &o->model, "a model: its predicted loss and how over-trained it is");
  c.option("--tokens", &o->tokens, "training tokens of the model (default: 20 per parameter)");
  c.option("--flops", &o->flops, "budget in FLOPs, such as 1e24");
  c.option("--gpu-hours", &o->gpu_hours, "budget in device hours").positive();
  c.option("--days", &o->days, "budget in days of the whole cluster (--gpus)").positive();
  c.option("--money", &o->money, "budget in USD at --price").positive();
  c.option("--loss", &o->loss, "the cheapest training to this loss").positive();
  add_cluster_options(c, o->cluster, "8xH100");
  c.option("--mfu", &o->mfu, "share of the peak that is reached").shows_default();
  c.option("--format", &o->format, format_help()).shows_default();
  c.option("--law", &o->law, "epoch, hoffmann, hoffmann-unrounded, kaplan, chinchilla-20").shows_default();
  c.option("--inference-tokens", &o->inference_tokens, "tokens the model will serve: least compute over its life");
  c.option("--inference-cost", &o->inference_cost, "price of an inference FLOP in training FLOPs")
      .shows_default()
      .at_least(0);
  c.flag("--json", &o->json, "print JSON");
  c.flag("--explain", &o->explain, "print each formula with the numbers put in");
  c.on_run([o] { run_scaling(*o); });
}

}  // namespace sinter::cli
