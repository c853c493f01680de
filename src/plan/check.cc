#include "plan/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "plan/fit.h"
#include "plan/memory.h"

namespace sinter::plan {
namespace {

constexpr double kGiB = 1073741824.0;

double at(const std::map<std::string, double>& values, const char* key) {
  auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

void add(CheckReport& report, const CheckRow& row, const char* quantity, double measured, double predicted) {
  if (measured > 0 && predicted > 0) report.comparisons.push_back({row.id, row.source, quantity, measured, predicted});
}

// Memory: nanotron logs its first rank, the others the fullest device.
void compare_memory(const CheckRow& row, CheckReport& report) {
  double measured = at(row.measured, "memory_gib") * kGiB;
  if (measured == 0) measured = at(row.measured, "memory_alloc_gib") * kGiB;
  if (measured == 0) measured = at(row.measured, "memory_gb") * (row.software == "nanotron" ? kGiB : 1e9);
  if (measured == 0) return;
  const Software& software = find_software(row.software);
  double predicted = row.software == "nanotron" ? plan_stage_memory(*row.model, row.parallel, software, 0).device.total()
                                                : plan_memory(*row.model, row.parallel, software).worst().device.total();
  add(report, row, "memory", measured, predicted);
}

// Published utilisation from the published speed: an arithmetic identity once the convention is right.
void compare_flops(const CheckRow& row, CheckReport& report) {
  std::string convention = convention_of(row, false);
  double devices = static_cast<double>(row.cluster->num_devices);
  double rate = at(row.measured, "tokens_per_s");
  if (rate == 0) rate = at(row.measured, "tokens_per_s_per_gpu") * devices;
  if (rate == 0 && at(row.measured, "step_time_s") > 0) {
    rate = static_cast<double>(row.parallel.global_batch * row.parallel.seq_len) / at(row.measured, "step_time_s");
  }
  if (convention.empty() || rate == 0) return;
  double flops = convention_flops(row, convention);
  // nanotron counts the tied embedding once more when a pipeline stores it twice.
  bool counts_twice = convention == "palm" && row.software == "nanotron" && row.parallel.pp > 1 && row.model->tied_head;
  if (counts_twice) flops += 6 * static_cast<double>(row.model->embedding_parameters);
  double per_device = flops * rate / devices;
  add(report, row, "MFU", at(row.measured, "mfu_pct"), 100 * per_device / row.peak_flops);
  add(report, row, "MFU", at(row.measured, "mfu_pct_published"), 100 * per_device / row.peak_flops);
  add(report, row, "FLOP/s", at(row.measured, "model_tflops_per_gpu"), per_device / 1e12);
}

void compare_training(const CheckRow& row, CheckReport& report) {
  compare_memory(row, report);
  compare_flops(row, report);
  std::optional<double> measured = measured_step(row);
  if (!measured) return;
  add(report, row, "step time", *measured, predicted_step(row, find_efficiency(row.cluster->device, row.software)));
}

void compare_layer(const CheckRow& row, CheckReport& report) {
  Efficiency efficiency = find_efficiency(row.cluster->device, row.software);
  TimeModel time(*row.model, row.parallel, *row.cluster, find_software(row.software), efficiency,
                 parse_format(row.format));
  TimeModel::LayerTime layer = time.layer(0);
  add(report, row, "layer forward", at(row.measured, "forward_ms") / 1e3, layer.forward);
  add(report, row, "layer backward", at(row.measured, "backward_ms") / 1e3, layer.backward);
}

void compare_gemm(const CheckRow& row, CheckReport& report) {
  double m = at(row.layout, "m"), n = at(row.layout, "n"), k = at(row.layout, "k");
  double measured = at(row.measured, "tflops") * 1e12;
  if (m * n * k == 0 || measured == 0) return;
  // Stand-alone products come near the best the device was seen to do; training does not.
  const Device& device = row.cluster->device;
  double best = device.attainable[static_cast<size_t>(Format::bf16)];
  double rate = best > 0 ? std::max(best, 0.93 * device.peak(Format::bf16)) : 0.9 * device.peak(Format::bf16);
  double bytes = 2 * (m * k + k * n + m * n);
  double seconds = std::max(2 * m * n * k / rate, bytes / (0.85 * device.bandwidth)) + 3e-5;
  add(report, row, "product", measured, 2 * m * n * k / seconds);
}

void compare_collective(const CheckRow& row, CheckReport& report) {
  double measured = at(row.measured, "bandwidth_gbs") * 1e9, bytes = at(row.layout, "bytes");
  Efficiency efficiency = find_efficiency(row.cluster->device, "nanotron");
  LinkEfficiency links = efficiency.links;
  links.link_share = 0.95, links.network_share = 0.9, links.network_latency = 3e-4;  // stand-alone, this cluster's latency
  Collectives collectives(*row.cluster, links);
  Group group{row.cluster->num_devices, 1};
  double n = static_cast<double>(group.size);
  bool reduces_all = row.operation == "AllReduce";
  double seconds = reduces_all ? collectives.all_reduce(group, bytes) : collectives.all_gather(group, bytes);
  add(report, row, "bus bandwidth", measured, bytes * (reduces_all ? 2.0 : 1.0) * (n - 1) / n / seconds);
}

void compare_state(const CheckRow& row, CheckReport& report) {
  double parameters = at(row.layout, "params_reported");
  double measured = at(row.measured, "model_state_gb_per_gpu");
  if (parameters == 0 || measured == 0) return;
  double shards = static_cast<double>(row.parallel.dp());
  int zero = row.parallel.zero;
  double bytes = 2.0 / (zero >= 3 ? shards : 1) + 2.0 / (zero >= 2 ? shards : 1) + 12.0 / (zero >= 1 ? shards : 1);
  add(report, row, "model state", measured, bytes * parameters / 1e9);
}

// What keeps the row from being predicted, beyond what its reader already said.
std::string missing(const CheckRow& row) {
  if (!row.problem.empty()) return row.problem;
  if (row.kind == "train" || row.kind == "layer_time") {
    if (!row.model) return "no model is given";
    if (!row.cluster) return "no device is given";
    int64_t step = row.parallel.micro_batch * row.parallel.dp();
    if (row.parallel.global_batch < step) return "the batch is smaller than one micro-batch per data-parallel rank";
  }
  return "";
}

void compare(const CheckRow& row, CheckReport& report) {
  if (row.kind == "train") compare_training(row, report);
  if (row.kind == "layer_time") compare_layer(row, report);
  if (row.kind == "gemm" && row.cluster) compare_gemm(row, report);
  if (row.kind == "collective" && row.cluster) compare_collective(row, report);
  if (row.kind == "memory") compare_state(row, report);
}

ErrorSummary summarize(const std::string& source, const std::string& quantity, const std::vector<Comparison>& all) {
  ErrorSummary s{source, quantity};
  std::vector<double> errors;
  for (const Comparison& c : all) {
    double error = std::abs(c.error());
    errors.push_back(error);
    s.mean += error, s.bias += c.error();
    if (error >= std::abs(s.worst.measured > 0 ? s.worst.error() : 0.0)) s.worst = c;
  }
  s.count = static_cast<int64_t>(errors.size());
  s.mean /= static_cast<double>(errors.size()), s.bias /= static_cast<double>(errors.size());
  std::sort(errors.begin(), errors.end());
  s.median = errors[errors.size() / 2];
  s.p90 = errors[errors.size() * 9 / 10];
  return s;
}

std::vector<RegretSummary> regrets(const std::vector<CheckRow>& rows) {
  std::map<std::string, std::vector<const CheckRow*>> groups;
  for (const CheckRow& row : rows) {
    if (!row.group.empty() && missing(row).empty() && measured_step(row)) groups[row.group].push_back(&row);
  }
  std::map<std::string, std::vector<std::pair<double, std::string>>> by_source;
  for (const auto& [name, members] : groups) {
    if (members.size() < 2) continue;
    double best = 1e300, chosen = 0, fastest = 1e300;
    for (const CheckRow* row : members) {
      double measured = *measured_step(*row);
      double predicted = predicted_step(*row, find_efficiency(row->cluster->device, row->software));
      best = std::min(best, measured);
      if (predicted < fastest) fastest = predicted, chosen = measured;
    }
    std::string source = members[0]->source.rfind("vTrain", 0) == 0 ? "vTrain" : members[0]->source;
    by_source[source].push_back({chosen / best - 1, name});
  }
  std::vector<RegretSummary> out;
  for (auto& [source, values] : by_source) {
    std::sort(values.begin(), values.end());
    RegretSummary s{source, static_cast<int64_t>(values.size())};
    for (const auto& [value, name] : values) {
      s.mean += value / static_cast<double>(values.size());
      s.exact += value == 0;
    }
    s.p90 = values[values.size() * 9 / 10].first;
    s.median = values[values.size() / 2].first;
    s.worst = values.back().first;
    s.worst_group = values.back().second;
    out.push_back(s);
  }
  return out;
}

}  // namespace

CheckReport check_rows(const std::vector<CheckRow>& rows) {
  CheckReport report;
  report.num_rows = static_cast<int64_t>(rows.size());
  std::map<std::string, int64_t> reasons;
  for (const CheckRow& row : rows) {
    std::string problem = missing(row);
    size_t before = report.comparisons.size();
    if (problem.empty()) {
      try {
        compare(row, report);
      } catch (const base::Error& e) {
        problem = e.what();
      }
    }
    if (report.comparisons.size() > before) {
      ++report.num_predicted;
    } else {
      ++reasons[problem.empty() ? fmt::format("kind '{}': nothing measured that this check predicts", row.kind) : problem];
    }
  }
  std::map<std::pair<std::string, std::string>, std::vector<Comparison>> groups;
  for (const Comparison& c : report.comparisons) groups[{c.quantity, c.source}].push_back(c);
  for (const auto& [key, group] : groups) report.summaries.push_back(summarize(key.second, key.first, group));
  report.regrets = regrets(rows);
  report.unpredicted.assign(reasons.begin(), reasons.end());
  std::stable_sort(report.unpredicted.begin(), report.unpredicted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return report;
}

std::string format_report(const CheckReport& report) {
  auto percent = [](double share) { return fmt::format("{:.1f} %", 100 * share); };
  std::string text = fmt::format("{} rows, {} predicted\n\n", report.num_rows, report.num_predicted);
  base::Table table({"quantity", "source", "rows", "median", "p90", "mean", "bias", "worst", "row"});
  for (const ErrorSummary& s : report.summaries) {
    table.add_row({s.quantity, s.source, std::to_string(s.count), percent(s.median), percent(s.p90), percent(s.mean),
                   fmt::format("{:+.1f} %", 100 * s.bias), fmt::format("{:+.1f} %", 100 * s.worst.error()), s.worst.row});
  }
  text += table.to_string();
  if (!report.regrets.empty()) {
    text += "\nlayout chosen by predicted time, against the fastest measured:\n";
    base::Table regret({"sweep", "groups", "exact", "mean regret", "median", "p90", "worst", "group"});
    for (const RegretSummary& s : report.regrets) {
      regret.add_row({s.source, std::to_string(s.groups), std::to_string(s.exact), percent(s.mean), percent(s.median),
                      percent(s.p90), percent(s.worst), s.worst_group});
    }
    text += regret.to_string();
  }
  if (!report.unpredicted.empty()) text += "\nnot predicted:\n";
  for (const auto& [reason, count] : report.unpredicted) text += fmt::format("  {:5}  {}\n", count, reason);
  return text;
}

nlohmann::json report_json(const CheckReport& report) {
  nlohmann::json out{{"rows", report.num_rows}, {"predicted", report.num_predicted}};
  for (const ErrorSummary& s : report.summaries) {
    out["errors"].push_back({{"source", s.source}, {"quantity", s.quantity}, {"rows", s.count}, {"mean", s.mean},
                             {"median", s.median}, {"p90", s.p90}, {"bias", s.bias},
                             {"worst", {{"row", s.worst.row}, {"measured", s.worst.measured},
                                        {"predicted", s.worst.predicted}, {"error", s.worst.error()}}}});
  }
  for (const RegretSummary& s : report.regrets) {
    out["regret"].push_back({{"source", s.source}, {"groups", s.groups}, {"exact", s.exact}, {"mean", s.mean},
                             {"median", s.median}, {"p90", s.p90}, {"worst", s.worst}, {"worst_group", s.worst_group}});
  }
  for (const auto& [reason, count] : report.unpredicted) out["unpredicted"].push_back({{"reason", reason}, {"rows", count}});
  for (const Comparison& c : report.comparisons) {
    out["predictions"].push_back({{"row", c.row}, {"source", c.source}, {"quantity", c.quantity},
                                  {"measured", c.measured}, {"predicted", c.predicted}, {"error", c.error()}});
  }
  return out;
}

}  // namespace sinter::plan
