// `sinter plan cost`: device hours, days, money, staff, energy and carbon of a training run.
#include "plan/cost.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/batch.h"
#include "plan/flops.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct CostOptions {
  ClusterOptions cluster;
  std::string model, tokens, parameters, convention = "6nd", grid = "world", format = "bf16";
  double gpu_hours = 0, tflops = 0, mfu = 0.40, staff = 0, salary = 0, staff_years = 1, power = 0, pue = 1;
  int64_t seq_len = 0;
  bool json = false, explain = false;
};

// What the run computes and how many device hours that takes.
struct Work {
  double flops = 0, parameters = 0, gpu_hours = 0;
  std::string convention;
};

Work find_work(const CostOptions& o, const plan::Cluster& cluster, json& out, std::vector<ExplainedLine>& why) {
  Work work;
  if (o.gpu_hours < 0) base::fail_usage("--gpu-hours is {:g}; expected more than 0", o.gpu_hours);
  work.gpu_hours = o.gpu_hours;
  if (o.gpu_hours > 0) return work;
  if (o.model.empty() && o.parameters.empty()) base::fail_usage("name a model, or give --parameters or --gpu-hours");
  if (!o.model.empty() && !o.parameters.empty())
    base::fail_usage("'{}' and --parameters {} are two models; give one", o.model, o.parameters);
  if (o.model.empty() && o.convention != "6nd")
    base::fail_usage("--convention {} needs a model's shape, --parameters has none; name a model", o.convention);
  if (o.tokens.empty()) base::fail_usage("--tokens is missing; for example --tokens 15.6T");
  if (o.tflops <= 0 && !(o.mfu > 0 && o.mfu <= 1)) base::fail_usage("--mfu is {}; expected a share in (0, 1]", o.mfu);
  const double tokens = plan::parse_count(o.tokens, "--tokens");
  const plan::FlopConvention& convention = plan::flop_convention(o.convention);
  double per_token = 0;
  std::string formula = "6 N D";
  if (!o.model.empty()) {
    spec::ModelSpec spec = plan::resolve_model(o.model).spec;
    work.parameters = static_cast<double>(spec::count_parameters(spec).total);
    per_token = plan::train_flops_per_token(plan::make_flop_basis(spec),
                                            static_cast<double>(choose_seq_len(o.seq_len, spec)), convention)
                    .total();
    work.convention = convention.name;
    formula = fmt::format("({}) D", convention.formula);
  } else {
    work.parameters = plan::parse_count(o.parameters, "--parameters");
    per_token = 6 * work.parameters;
    work.convention = "6nd";
  }
  work.flops = per_token * tokens;
  const double rate =
      o.tflops > 0 ? o.tflops * 1e12 : cluster.device.compute_rate(plan::parse_format(o.format)) * o.mfu;
  work.gpu_hours = plan::gpu_hours_for(work.flops, rate);
  why.push_back({fmt::format("training FLOPs ({})", work.convention), formula,
                 fmt::format("{:.6g} x {:.6g}", per_token, tokens), fmt::format("{:.4g}", work.flops)});
  why.push_back({"GPU hours", "FLOPs / (rate x 3600)", fmt::format("{:.4g} / ({:.4g} x 3600)", work.flops, rate),
                 base::format_grouped(std::llround(work.gpu_hours))});
  out["flops"] = work.flops;
  out["flops_per_token"] = per_token;
  out["convention"] = work.convention;
  out["flops_per_second_per_device"] = rate;
  return work;
}

plan::CostInput make_input(const CostOptions& o, const plan::Cluster& cluster, double gpu_hours) {
  plan::CostInput in;
  in.gpu_hours = gpu_hours;
  in.num_devices = static_cast<double>(cluster.num_devices);
  in.price_per_hour = cluster.price_per_hour;
  in.staff = o.staff;
  in.salary_per_year = o.salary;
  in.staff_years = o.staff_years;
  in.power_watts = o.power > 0 ? o.power : cluster.device.power_watts;
  in.pue = o.pue;
  in.kg_co2_per_kwh = plan::parse_grid(o.grid);
  return in;
}

void explain_cost(const plan::CostInput& in, const plan::RunCost& cost, std::vector<ExplainedLine>& why) {
  why.push_back({"days", "GPU hours / devices / 24", fmt::format("{:.6g} / {:g} / 24", in.gpu_hours, in.num_devices),
                 fmt::format("{:.1f}", cost.days)});
  why.push_back({"money", "GPU hours x price + people x salary x years",
                 fmt::format("{:.6g} x {:g} + {:g} x {:g} x {:g}", in.gpu_hours, in.price_per_hour, in.staff,
                             in.salary_per_year, in.staff_years),
                 format_money(cost.money)});
  why.push_back({"energy", "GPU hours x power x PUE",
                 fmt::format("{:.6g} x {:g} W x {:g}", in.gpu_hours, in.power_watts, in.pue),
                 fmt::format("{:.4g} MWh", cost.energy_kwh / 1000)});
  why.push_back({"carbon", "energy x intensity of the grid",
                 fmt::format("{:.6g} kWh x {:g} kg/kWh", cost.energy_kwh, in.kg_co2_per_kwh),
                 fmt::format("{:.2f} t CO2", cost.co2_tonnes)});
}

void print_cost(const plan::Cluster& cluster, const Work& work, const plan::CostInput& in, const plan::RunCost& cost,
                const plan::Reliability& reliability) {
  base::Table table({"quantity", "value"});
  if (work.flops > 0) {
    table.add_row({fmt::format("training FLOPs ({})", work.convention), fmt::format("{:.3g}", work.flops)});
  }
  table.add_row({"GPU hours", work.gpu_hours < 1e6 ? base::format_grouped(std::llround(work.gpu_hours))
                                                   : fmt::format("{:.2f}M", work.gpu_hours / 1e6)});
  table.add_row(
      {fmt::format("days on {} x {}", cluster.num_devices, cluster.device.name), fmt::format("{:.1f}", cost.days)});
  table.add_row({fmt::format("devices at ${:.2f}/h", in.price_per_hour), format_money(cost.device_money)});
  if (cost.staff_money > 0) table.add_row({"staff", format_money(cost.staff_money)});
  table.add_row({"money", format_money(cost.money)});
  table.add_row({fmt::format("energy at {:g} W, PUE {:g}", in.power_watts, in.pue),
                 fmt::format("{:.4g} MWh", cost.energy_kwh / 1000)});
  table.add_row(
      {fmt::format("carbon at {:g} kg/kWh", in.kg_co2_per_kwh), fmt::format("{:.2f} t CO2", cost.co2_tonnes)});
  if (reliability.write_s > 0) {
    table.add_row({"checkpoint", fmt::format("{}, written in {}",
                                             base::format_bytes(work.parameters * plan::kCheckpointBytesPerParameter),
                                             base::format_duration(reliability.write_s))});
    table.add_row({"best checkpoint interval", base::format_duration(reliability.interval_s)});
  }
  if (work.parameters > 0) {
    table.add_row({"mean time between failures", base::format_duration(reliability.cluster_mtbf_s)});
    table.add_row({"share of time that makes progress", fmt::format("{:.1f} %", 100 * reliability.goodput)});
  }
  fmt::print("{}", table.to_string());
}

void run_cost_command(const CostOptions& o) {
  plan::Cluster cluster = make_cluster(o.cluster);
  std::vector<ExplainedLine> why;
  json out;
  Work work = find_work(o, cluster, out, why);
  plan::CostInput in = make_input(o, cluster, work.gpu_hours);
  plan::RunCost cost = plan::run_cost(in);
  explain_cost(in, cost, why);
  out.update(json{{"gpu_hours", cost.gpu_hours},
                  {"devices", cluster.num_devices},
                  {"device", cluster.device.name},
                  {"days", cost.days},
                  {"price_per_hour", in.price_per_hour},
                  {"device_money", cost.device_money},
                  {"staff_money", cost.staff_money},
                  {"money", cost.money},
                  {"energy_kwh", cost.energy_kwh},
                  {"co2_tonnes", cost.co2_tonnes},
                  {"kg_co2_per_kwh", in.kg_co2_per_kwh}});
  plan::Reliability reliability;
  if (work.parameters > 0) {
    const double bytes = work.parameters * plan::kCheckpointBytesPerParameter;
    reliability = plan::plan_reliability(in.num_devices, bytes, cluster.storage.write_bandwidth,
                                         cluster.storage.read_bandwidth, cluster.mtbf_hours);
    out["checkpoint"] = {{"bytes", bytes},
                         {"write_s", reliability.write_s},
                         {"load_s", reliability.load_s},
                         {"interval_s", reliability.interval_s},
                         {"cluster_mtbf_s", reliability.cluster_mtbf_s},
                         {"goodput", reliability.goodput}};
  }
  if (o.json) return print_json(out);
  print_cost(cluster, work, in, cost, reliability);
  if (o.explain) print_explanation(why);
}

}  // namespace

void add_plan_cost(Command plan) {
  auto o = std::make_shared<CostOptions>();
  const Command c = plan.add_verb("cost", "GPU hours, days, money, staff, energy and carbon of a training run");
  c.footer(
      "Examples:\n  sinter plan cost llama-3-8b --tokens 15T\n  sinter plan cost --parameters 405B --tokens 15.6T "
      "--gpus 16384xH100");
  c.option("model", &o->model, "a model's name or folder");
  c.option("--parameters", &o->parameters, "parameters in place of a model, such as 405B");
  c.option("--tokens", &o->tokens, "training tokens, such as 15.6T");
  c.option("--gpu-hours", &o->gpu_hours, "device hours, when they are known").positive();
  add_cluster_options(c, o->cluster, "8xH100");
  c.option("--tflops", &o->tflops, "TFLOP/s each device reaches (default: peak x --mfu)").positive();
  c.option("--mfu", &o->mfu, "share of the peak that is reached").shows_default();
  c.option("--format", &o->format, format_help()).shows_default();
  c.option("--convention", &o->convention, convention_help()).shows_default();
  c.option("--seq-len", &o->seq_len,
           "sequence length, for conventions that count attention (default: 4096, or the model's where that is less)")
      .at_least(1);
  c.option("--staff", &o->staff, "people").at_least(0);
  c.option("--salary", &o->salary, "USD per person and year").at_least(0);
  c.option("--years", &o->staff_years, "years the people work on it").shows_default().at_least(0);
  c.option("--power", &o->power, "watts per device (default: the table's)").positive();
  c.option("--pue", &o->pue, "power of the building over power of the devices").shows_default().at_least(1);
  c.option("--grid", &o->grid, grid_help()).shows_default();
  c.flag("--json", &o->json, "print JSON");
  c.flag("--explain", &o->explain, "print each formula with the numbers put in");
  c.on_run([o] { run_cost_command(*o); });
}

}  // namespace sinter::cli
