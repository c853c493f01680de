// `sinter plot RUN...`: the curves of runs, in the terminal, as SVG or as one HTML page.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plot_data.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

struct Flags {
  std::vector<std::string> runs;
  std::string key = "loss", svg, html, csv;
  PlotWish wish;
  int width = 90, height = 20;
};

// The last value of a key, and the least with its step.
struct Summary {
  double last = NAN, least = NAN, least_step = 0;
};
Summary summarize(const RunCurves& run, const std::string& key) {
  Summary out;
  for (const RunCurves::Line& line : run.lines) {
    for (const auto& [name, value] : line.values) {
      if (name != key) continue;
      out.last = value;
      if (!(value >= out.least)) out.least = value, out.least_step = line.step;
    }
  }
  return out;
}

std::vector<std::string> summary_header() {
  return {"run", "steps", "tokens", "time", "loss", "least validation loss", "at step"};
}

std::vector<std::string> summary_row(const RunCurves& run) {
  auto number = [](double value) { return std::isfinite(value) ? fmt::format("{:.4f}", value) : std::string("-"); };
  const RunCurves::Line& last = run.lines.back();
  const Summary loss = summarize(run, "loss"), checked = summarize(run, "validation_loss");
  return {run.name,
          base::format_grouped(static_cast<int64_t>(last.step)),
          base::format_count(last.tokens),
          base::format_duration(last.seconds),
          number(loss.last),
          number(checked.least),
          std::isfinite(checked.least) ? base::format_grouped(static_cast<int64_t>(checked.least_step)) : "-"};
}

std::string page(const std::vector<RunCurves>& runs, const PlotWish& wish) {
  std::vector<std::vector<std::string>> rows;
  for (const RunCurves& run : runs) rows.push_back(summary_row(run));
  std::vector<base::PageSection> sections{{"Runs", "", base::html_table(summary_header(), rows)}};
  for (const std::string& key : curve_keys(runs)) {
    if (key == "validation_loss" && runs.size() == 1) continue;  // beside the loss
    base::Chart chart = make_curve_chart(runs, key, wish);
    chart.title.clear();  // the section's heading says it
    sections.push_back({key, "", base::chart_svg(chart, 860, 360)});
  }
  return base::html_page("Training curves", sections);
}

std::string table_of_values(const std::vector<RunCurves>& runs) {
  const std::vector<std::string> keys = curve_keys(runs);
  std::string text = fmt::format("run,step,tokens,seconds,{}\n", fmt::join(keys, ","));
  for (const RunCurves& run : runs) {
    std::string name = run.name;
    std::replace(name.begin(), name.end(), '"', '\'');
    for (const RunCurves::Line& line : run.lines) {
      text += fmt::format("\"{}\",{},{},{:.3f}", name, line.step, line.tokens, line.seconds);
      for (const std::string& key : keys) {
        const auto at =
            std::find_if(line.values.begin(), line.values.end(), [&](const auto& v) { return v.first == key; });
        text += at == line.values.end() ? "," : fmt::format(",{}", at->second);
      }
      text += "\n";
    }
  }
  return text;
}

void run_plot(const Flags& flags) {
  std::vector<RunCurves> runs;
  for (const std::string& path : flags.runs) runs.push_back(read_curves(path));
  const std::vector<std::string> keys = curve_keys(runs);
  if (std::find(keys.begin(), keys.end(), flags.key) == keys.end())
    base::fail_usage("--key {}: none of these runs has it; they have {}{}", flags.key, fmt::join(keys, ", "),
                     base::did_you_mean(flags.key, keys));
  const base::Chart chart = make_curve_chart(runs, flags.key, flags.wish);
  auto write = [](const std::string& path, const std::string& text) {
    if (path.empty()) return;
    base::write_file_atomic(path, text);
    std::printf("Wrote %s\n", path.c_str());
  };
  write(flags.svg, base::chart_svg(chart, 860, 420));
  write(flags.html, page(runs, flags.wish));
  write(flags.csv, table_of_values(runs));
  if (!flags.svg.empty() || !flags.html.empty() || !flags.csv.empty()) return;
  base::Table table(summary_header());
  for (const RunCurves& run : runs) table.add_row(summary_row(run));
  std::printf("%s\n%s", base::chart_text(chart, flags.width - 11, flags.height).c_str(), table.to_string().c_str());
}

}  // namespace

void add_plot(Command app) {
  auto flags = std::make_shared<Flags>();
  const Command verb = app.add_verb("plot", "the curves of training runs: in the terminal, SVG, HTML or CSV");
  verb.option("runs", &flags->runs, "run folders (checkpoint.dir) or metrics files").required();
  verb.option("--key", &flags->key, "what to draw: loss, validation_loss, grad_norm, lr, tokens_per_second, ...")
      .shows_default();
  verb.option("--x", &flags->wish.x, "step, tokens or hours").one_of({"step", "tokens", "hours"}).shows_default();
  verb.option("--smooth", &flags->wish.smooth, "weight of the values before in a running mean").in_range(0.0, 0.9999);
  verb.flag("--log-x", &flags->wish.log_x, "a logarithmic axis of steps");
  verb.flag("--log-y", &flags->wish.log_y, "a logarithmic axis of values");
  verb.option("--svg", &flags->svg, "write the chart to this file");
  verb.option("--html", &flags->html, "write a page with a chart of every key to this file");
  verb.option("--csv", &flags->csv, "write all values to this file");
  verb.option("--width", &flags->width, "columns in the terminal").in_range(40, 400).shows_default();
  verb.option("--height", &flags->height, "lines in the terminal").in_range(5, 200).shows_default();
  verb.footer(
      "Examples:\n"
      "  sinter plot run\n"
      "  sinter plot run-a run-b --x tokens --smooth 0.9\n"
      "  sinter plot run-* --html curves.html");
  verb.on_run([flags] { run_plot(*flags); });
}

}  // namespace sinter::cli
