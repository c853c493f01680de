#include "cli/plot_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"

namespace sinter::cli {
namespace {

namespace fs = std::filesystem;

const std::vector<std::string>& usual_keys() {
  static const std::vector<std::string> keys{
      "loss",        "validation_loss", "grad_norm",          "lr",       "tokens_per_second",
      "flops_share", "balance_loss",    "noise_scale_tokens", "mtp_loss", "loss_scale"};
  return keys;
}

const double* find_value(const RunCurves::Line& line, const std::string& key) {
  const auto found =
      std::find_if(line.values.begin(), line.values.end(), [&](const auto& value) { return value.first == key; });
  return found == line.values.end() ? nullptr : &found->second;
}

double place_of(const RunCurves::Line& line, const std::string& x) {
  return x == "tokens" ? line.tokens : x == "hours" ? line.seconds / 3600 : line.step;
}

std::vector<std::pair<double, double>> points_of(const RunCurves& run, const std::string& key, const std::string& x) {
  std::vector<std::pair<double, double>> points;
  for (const RunCurves::Line& line : run.lines) {
    if (const double* value = find_value(line, key)) points.emplace_back(place_of(line, x), *value);
  }
  return points;
}

// An exponential mean that begins at the first value.
void smooth(std::vector<std::pair<double, double>>& points, double kept) {
  double mean = 0, weight = 0;
  for (auto& [x, y] : points) {
    mean = kept * mean + (1 - kept) * y;
    weight = kept * weight + (1 - kept);
    y = mean / weight;
  }
}

}  // namespace

RunCurves read_curves(const std::string& path) {
  std::error_code ignored;
  const std::string file = fs::is_directory(path, ignored) ? path + "/metrics.jsonl" : path;
  SINTER_CHECK(fs::is_regular_file(file, ignored), "'{}' is not there; expected a run's folder or a metrics file",
               file);
  RunCurves run{.name = fs::path(path).lexically_normal().string()};
  if (run.name.size() > 1 && run.name.ends_with('/')) run.name.pop_back();
  const std::string text = base::read_file(file);
  double seconds = 0;
  int64_t number = 1;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // still being written
    const auto line = base::parse_json(text.substr(begin, end - begin), fmt::format("{} line {}", file, number));
    begin = end + 1;
    SINTER_CHECK(line.is_object() && line.contains("step") && line["step"].is_number(),
                 "'{}' line {}: expected an object with a step, as `sinter train` writes them", file, number);
    RunCurves::Line out{.step = line["step"].get<double>()};
    for (const auto& [key, value] : line.items()) {
      if (value.is_number() && key != "step") out.values.emplace_back(key, value.get<double>());
    }
    const double* spent = find_value(out, "seconds");
    const double steps = run.lines.empty() ? 1 : std::max(1.0, out.step - run.lines.back().step);
    seconds += spent ? *spent * steps : 0;  // of the steps between two lines as of the second
    if (const double* tokens = find_value(out, "tokens")) out.tokens = *tokens;
    out.seconds = seconds;
    run.lines.push_back(std::move(out));
  }
  SINTER_CHECK(!run.lines.empty(), "'{}' has no whole line yet", file);
  return run;
}

base::Chart make_curve_chart(const std::vector<RunCurves>& runs, const std::string& key, const PlotWish& wish) {
  base::Chart chart{.title = key, .x_label = wish.x, .y_label = key, .log_x = wish.log_x, .log_y = wish.log_y};
  for (size_t r = 0; r < runs.size(); ++r) {
    auto points = points_of(runs[r], key, wish.x);
    if (points.empty()) continue;
    if (wish.smooth > 0) smooth(points, wish.smooth);
    const bool is_curve = points.size() > 1;
    chart.series.push_back({runs[r].name, std::move(points), is_curve, static_cast<int>(r)});
    auto checks = key == "loss" ? points_of(runs[r], "validation_loss", wish.x) : decltype(points)();
    if (!checks.empty())
      chart.series.push_back({runs.size() == 1 ? "validation" : runs[r].name + ", validation", std::move(checks), false,
                              static_cast<int>(runs.size() == 1 ? 1 : r)});
  }
  return chart;
}

std::vector<std::string> curve_keys(const std::vector<RunCurves>& runs) {
  std::vector<std::string> keys;
  auto add = [&](const std::string& key) {
    const bool is_there = std::any_of(runs.begin(), runs.end(), [&](const RunCurves& run) {
      return std::any_of(run.lines.begin(), run.lines.end(), [&](const auto& line) { return find_value(line, key); });
    });
    const bool is_new = std::find(keys.begin(), keys.end(), key) == keys.end();
    if (is_there && is_new) keys.push_back(key);
  };
  for (const std::string& key : usual_keys()) add(key);
  for (const RunCurves& run : runs) {
    for (const auto& [key, unused] : run.lines.back().values) {
      if (key != "tokens" && key != "seconds" && key != "time") add(key);
    }
  }
  return keys;
}

}  // namespace sinter::cli
