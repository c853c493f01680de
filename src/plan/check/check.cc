#include "plan/check/check.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "plan/check/compare.h"
#include "plan/memory.h"
#include "plan/search.h"
#include "plan/software.h"

namespace sinter::plan {
namespace {

// What keeps the row from being predicted, beyond what its reader already said.
std::string missing(const CheckRow& row) {
  if (!row.problem.empty()) return row.problem;
  if (row.kind == "train" || row.kind == "layer_time") {
    if (!row.model) return "no model is given";
    if (!row.cluster) return "no device is given";
    int64_t step = row.parallel.micro_batch * row.parallel.dp();
    if (row.layout_given && row.parallel.global_batch < step)
      return "the batch is smaller than one micro-batch per data-parallel rank";
  }
  if (row.kind == "decode" || row.kind == "prefill" || row.kind == "serve_throughput") {
    if (!row.spec)
      return row.model ? "latent attention is not served" : "the shape of model '" + row.model_name + "' is not given";
    if (!row.cluster) return "no device is given";
  }
  return "";
}

ErrorSummary summarize(const std::string& source, const std::string& quantity, const std::vector<CheckedNumber>& all) {
  ErrorSummary s{source, quantity};
  std::vector<double> errors;
  for (const CheckedNumber& c : all) {
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

// Counts a run of a sweep as fitting or not; true when the row is one of those that failed.
bool count_fit(const CheckRow& row, FitSummary& fit) {
  if (row.group.empty() || row.kind != "train") return false;
  const Software& software = find_software(row.software);
  bool fits = plan_memory(*row.model, row.parallel, software).fits(row.cluster->device.memory_bytes);
  (row.failed ? fit.failed : fit.ran) += 1;
  if (row.failed)
    fit.failed_predicted += !fits;
  else
    fit.ran_predicted += fits;
  return row.failed;
}

std::vector<RegretSummary> regrets(const std::vector<CheckRow>& rows) {
  std::map<std::string, std::vector<const CheckRow*>> groups;
  for (const CheckRow& row : rows) {
    const bool is_run = row.kind == "train" && row.model && row.cluster;
    if (is_run && !row.group.empty() && missing(row).empty() && measured_step(row)) groups[row.group].push_back(&row);
  }
  std::map<std::string, std::vector<std::pair<double, std::string>>> by_source;
  auto machine = [](int64_t devices) {
    return devices <= 64 ? "1 to 64 devices" : devices <= 256 ? "65 to 256 devices" : "more than 256 devices";
  };
  for (const auto& [name, members] : groups) {
    double best = 1e300;
    std::vector<Ranked> layouts;
    std::vector<double> seconds;  // measured, of the same
    for (const CheckRow* row : members) {
      try {
        CheckRow unmeasured = *row;  // a choice is made before anything runs: what a row's memory told must not help
        unmeasured.timed_software.clear();
        double predicted = predicted_step(unmeasured, find_efficiency(row->cluster->device, row->software));
        layouts.push_back({predicted, tensor_nodes(row->parallel, *row->cluster)});
        seconds.push_back(*measured_step(*row));
        best = std::min(best, seconds.back());
      } catch (const base::Error&) {
        continue;  // already counted among those that cannot be predicted
      }
    }
    if (layouts.size() < 2) continue;
    double chosen = seconds[choose_layout(layouts)];
    std::string source = members[0]->source.rfind("vTrain", 0) == 0 ? "vTrain" : members[0]->source;
    by_source[source].push_back({chosen / best - 1, name});
    by_source[fmt::format("{}, {}", source, machine(members[0]->cluster->num_devices))].push_back(
        {chosen / best - 1, name});
  }
  std::vector<RegretSummary> out;
  if (by_source.size() > 2) {
    std::vector<std::pair<double, std::string>> all;
    for (const auto& [source, values] : by_source) {
      if (source.find(" devices") == std::string::npos) all.insert(all.end(), values.begin(), values.end());
    }
    by_source["all sweeps"] = all;
  }
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
  std::map<std::string, FitSummary> fits;
  for (const CheckRow& row : rows) {
    std::string problem = missing(row);
    size_t before = report.comparisons.size();
    bool is_counted = false;
    if (problem.empty()) {
      try {
        compare_row(row, report.comparisons);
        is_counted = count_fit(row, fits[row.source]);
      } catch (const base::Error& e) {
        problem = e.what();
      }
    }
    if (problem.empty()) problem = row.time_problem;
    if (report.comparisons.size() > before || is_counted) {
      ++report.num_predicted;
    } else {
      ++reasons[problem.empty() ? fmt::format("kind '{}': nothing measured that this check predicts", row.kind)
                                : problem];
    }
  }
  std::map<std::pair<std::string, std::string>, std::vector<CheckedNumber>> groups;
  for (const CheckedNumber& c : report.comparisons) groups[{c.quantity, c.source}].push_back(c);
  for (const auto& [key, group] : groups) report.summaries.push_back(summarize(key.second, key.first, group));
  report.regrets = regrets(rows);
  for (auto& [source, fit] : fits) {
    fit.source = source;
    if (fit.failed > 0) report.fits.push_back(fit);
  }
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
                   fmt::format("{:+.1f} %", 100 * s.bias), fmt::format("{:+.1f} %", 100 * s.worst.error()),
                   s.worst.row});
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
  for (const FitSummary& f : report.fits) {
    text += fmt::format(
        "\n{}: of {} runs that finished {} are predicted to fit; of {} that failed (memory, hangs and timeouts) {} are "
        "predicted not to fit\n",
        f.source, f.ran, f.ran_predicted, f.failed, f.failed_predicted);
  }
  if (!report.unpredicted.empty()) text += "\nnot predicted:\n";
  for (const auto& [reason, count] : report.unpredicted) text += fmt::format("  {:5}  {}\n", count, reason);
  return text;
}

nlohmann::json report_json(const CheckReport& report) {
  nlohmann::json out{{"rows", report.num_rows}, {"predicted", report.num_predicted}};
  for (const ErrorSummary& s : report.summaries) {
    out["errors"].push_back({{"source", s.source},
                             {"quantity", s.quantity},
                             {"rows", s.count},
                             {"mean", s.mean},
                             {"median", s.median},
                             {"p90", s.p90},
                             {"bias", s.bias},
                             {"worst",
                              {{"row", s.worst.row},
                               {"measured", s.worst.measured},
                               {"predicted", s.worst.predicted},
                               {"error", s.worst.error()}}}});
  }
  for (const RegretSummary& s : report.regrets) {
    out["regret"].push_back({{"source", s.source},
                             {"groups", s.groups},
                             {"exact", s.exact},
                             {"mean", s.mean},
                             {"median", s.median},
                             {"p90", s.p90},
                             {"worst", s.worst},
                             {"worst_group", s.worst_group}});
  }
  for (const FitSummary& f : report.fits) {
    out["fits"].push_back({{"source", f.source},
                           {"ran", f.ran},
                           {"ran_predicted", f.ran_predicted},
                           {"failed", f.failed},
                           {"failed_predicted", f.failed_predicted}});
  }
  out["unpredicted"] = nlohmann::json::array();  // there also when every row is predicted
  for (const auto& [reason, count] : report.unpredicted)
    out["unpredicted"].push_back({{"reason", reason}, {"rows", count}});
  for (const CheckedNumber& c : report.comparisons) {
    out["predictions"].push_back({{"row", c.row},
                                  {"source", c.source},
                                  {"quantity", c.quantity},
                                  {"measured", c.measured},
                                  {"predicted", c.predicted},
                                  {"error", c.error()}});
  }
  return out;
}

}  // namespace sinter::plan
