// `sinter plan fit SWEEP.csv`: scaling laws of the user's own runs, with intervals and pictures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/chart.h"
#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/batch.h"
#include "plan/scaling/sweep_fit.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct FitOptions {
  std::string sweep, svg, flops;
  int resamples = 200;
  uint64_t seed = 0;
  bool json = false;
};

json interval_json(double value, const plan::Interval& interval) {
  return {{"value", value}, {"low", interval.low}, {"high", interval.high}};
}

// Every budget's rows as marks, with its parabola where one fits, else with the parametric law.
base::Chart make_chart(const std::vector<plan::SweepRow>& rows, const plan::ParametricFit& fit,
                       const plan::IsoFlopFit* isoflop) {
  base::Chart chart{"Loss against size", "parameters", "loss", true, false, {}};
  if (!isoflop) {
    base::Series runs{"runs", {}, false}, law{"law at each run", {}, false};
    for (const plan::SweepRow& r : rows) {
      runs.points.emplace_back(r.parameters, r.loss);
      law.points.emplace_back(r.parameters, fit.law.loss(r.parameters, r.tokens));
    }
    chart.series = {runs, law};
    return chart;
  }
  base::Series minima{"minima", {}, false, 9};
  int colour = 0;
  for (const plan::IsoFlopCurve& curve : isoflop->curves) {
    base::Series marks{fmt::format("{:.1e} FLOPs", curve.flops), {}, false, colour}, line{"", {}, true, colour};
    ++colour;
    double low = 1e300, high = 0;
    for (const plan::SweepRow& r : curve.rows) {
      marks.points.emplace_back(r.parameters, r.loss);
      low = std::min(low, r.parameters);
      high = std::max(high, r.parameters);
    }
    for (int i = 0; i <= 40; ++i) {
      double x = std::log10(low) + (std::log10(high) - std::log10(low)) * i / 40;
      line.points.emplace_back(std::pow(10, x), curve.a * x * x + curve.b * x + curve.c);
    }
    chart.series.push_back(std::move(marks));
    chart.series.push_back(std::move(line));
    minima.points.emplace_back(curve.best_parameters, curve.best_loss);
  }
  chart.series.push_back(std::move(minima));
  return chart;
}

void print_parametric(const plan::ParametricFit& fit) {
  fmt::print("L(N, D) = E + A / N^alpha + B / D^beta, Huber loss on log L; rms error {:.2f} %\n", 100 * fit.rms_error);
  base::Table table({"constant", "value", "95 % interval"});
  auto row = [&](const char* name, double value, const plan::Interval& i) {
    table.add_row({name, fmt::format("{:.5g}", value), fmt::format("[{:.5g}, {:.5g}]", i.low, i.high)});
  };
  row("E", fit.law.E, fit.E);
  row("A", fit.law.A, fit.A);
  row("B", fit.law.B, fit.B);
  row("alpha", fit.law.alpha, fit.alpha);
  row("beta", fit.law.beta, fit.beta);
  row("N* ~ C^", fit.exponent, fit.exponent_interval);
  fmt::print("{}\n", table.to_string());
}

void print_isoflop(const plan::IsoFlopFit& fit) {
  fmt::print("IsoFLOP: N* = {:.4g} C^{:.4f}, 95 % interval of the exponent [{:.4f}, {:.4f}]\n", fit.scale, fit.exponent,
             fit.exponent_interval.low, fit.exponent_interval.high);
  base::Table table({"budget", "runs", "best parameters", "best tokens", "tokens/param", "loss"});
  for (const plan::IsoFlopCurve& c : fit.curves) {
    table.add_row({fmt::format("{:.2e}", c.flops), std::to_string(c.rows.size()), base::format_count(c.best_parameters),
                   base::format_count(c.best_tokens), fmt::format("{:.1f}", c.best_tokens / c.best_parameters),
                   fmt::format("{:.4f}", c.best_loss)});
  }
  fmt::print("{}", table.to_string());
  for (double flops : fit.left_out)
    fmt::print("Left out: {:.2e} FLOPs (fewer than three sizes, or no minimum among them).\n", flops);
  fmt::print("\n");
}

void run_fit(const FitOptions& o) {
  if (o.resamples < 2 || o.resamples > 10000) base::fail_usage("--resamples is {}; expected 2 to 10000", o.resamples);
  std::vector<plan::SweepRow> rows = plan::parse_sweep(base::read_file(o.sweep), o.sweep);
  plan::ParametricFit fit = plan::fit_parametric(rows, o.resamples, o.seed);
  std::unique_ptr<plan::IsoFlopFit> isoflop;
  std::string why_not;
  try {
    isoflop = std::make_unique<plan::IsoFlopFit>(plan::fit_isoflop(rows, o.resamples, o.seed));
  } catch (const base::UsageError& e) {
    why_not = e.what();
  }
  json out{{"rows", rows.size()},
           {"parametric",
            {{"E", interval_json(fit.law.E, fit.E)},
             {"A", interval_json(fit.law.A, fit.A)},
             {"B", interval_json(fit.law.B, fit.B)},
             {"alpha", interval_json(fit.law.alpha, fit.alpha)},
             {"beta", interval_json(fit.law.beta, fit.beta)},
             {"exponent", interval_json(fit.exponent, fit.exponent_interval)},
             {"rms_error", fit.rms_error}}}};
  if (isoflop) {
    out["isoflop"] = {{"scale", isoflop->scale},
                      {"exponent", interval_json(isoflop->exponent, isoflop->exponent_interval)},
                      {"left_out", isoflop->left_out}};
    for (const plan::IsoFlopCurve& c : isoflop->curves) {
      out["isoflop"]["minima"].push_back(
          {{"flops", c.flops}, {"parameters", c.best_parameters}, {"tokens", c.best_tokens}, {"loss", c.best_loss}});
    }
  }
  base::Chart chart = make_chart(rows, fit, isoflop.get());
  if (!o.svg.empty()) base::write_file_atomic(o.svg, base::chart_svg(chart, 760, 460));
  std::string prediction, caution;
  if (!o.flops.empty()) {
    double flops = plan::parse_count(o.flops, "--flops");
    double most = 0;
    for (const plan::SweepRow& row : rows) most = std::max(most, row.flops());
    if (flops > 10 * most) {  // how far N* may be off by the exponent's interval alone
      const double decades = std::log10(flops / most);
      const double spread = std::pow(10.0, decades * (fit.exponent_interval.high - fit.exponent_interval.low) / 2);
      caution = fmt::format(
          "Caution: that is {:.1f} decades beyond the largest of {} runs ({:.3g} FLOPs). By the exponent's interval "
          "alone the "
          "best size may be {:.2g} times smaller or larger.\n",
          decades, rows.size(), most, spread);
    }
    plan::Optimum best = plan::compute_optimal(fit.law, flops);
    out["best"] = {{"flops", flops}, {"parameters", best.parameters}, {"tokens", best.tokens}, {"loss", best.loss}};
    prediction = fmt::format("For {:.3g} FLOPs: {} parameters on {} tokens, loss {:.3f} by the parametric law", flops,
                             base::format_count(best.parameters), base::format_count(best.tokens), best.loss);
    if (isoflop) {
      plan::Optimum other = isoflop->at(flops);
      out["best"]["isoflop_parameters"] = other.parameters;
      prediction += fmt::format("; {} parameters on {} tokens by IsoFLOP", base::format_count(other.parameters),
                                base::format_count(other.tokens));
    }
  }
  if (o.json) return print_json(out);
  fmt::print("{} runs of '{}'\n\n", rows.size(), o.sweep);
  print_parametric(fit);
  if (isoflop) {
    print_isoflop(*isoflop);
  } else {
    fmt::print("No IsoFLOP fit: {}.\n\n", why_not);
  }
  fmt::print("{}", base::chart_text(chart));
  if (!prediction.empty()) fmt::print("\n{}.\n{}", prediction, caution);
  if (!o.svg.empty()) fmt::print("\nWrote {}\n", o.svg);
}

}  // namespace

void add_plan_fit(Command plan) {
  auto o = std::make_shared<FitOptions>();
  const Command c =
      plan.add_verb("fit", "scaling laws of your own sweep: parametric and IsoFLOP, with intervals and a plot");
  c.footer("Examples:\n  sinter plan fit sweep.csv");
  c.option("SWEEP", &o->sweep, "CSV with a header: loss and two of parameters, tokens, flops").required();
  c.option("--flops", &o->flops, "predict the best model for this budget");
  c.option("--svg", &o->svg, "write the picture to this file");
  c.option("--resamples", &o->resamples, "bootstrap samples behind the intervals").shows_default();
  c.option("--seed", &o->seed, "of the bootstrap").shows_default();
  c.flag("--json", &o->json, "print JSON");
  c.on_run([o] { run_fit(*o); });
}

}  // namespace sinter::cli
