#include "base/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "base/html.h"
#include "base/text.h"

namespace sinter::base {
namespace {

// Colours that stay apart for colour-blind readers (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9",
                                    "#d55e00", "#8c8c3c", "#999999", "#5b3a8c", "#222222"};
const char* colour(size_t i) { return kColours[i % std::size(kColours)]; }

struct Axis {
  double low = 0, high = 1;
  bool log = false;

  double share(double value) const {
    return log ? (std::log(value) - std::log(low)) / (std::log(high) - std::log(low)) : (value - low) / (high - low);
  }
  bool shows(double value) const { return std::isfinite(value) && (!log || value > 0); }
};

Axis make_axis(const Chart& chart, bool is_x) {
  Axis axis;
  axis.log = is_x ? chart.log_x : chart.log_y;
  bool first = true;
  for (const Series& s : chart.series) {
    for (auto [x, y] : s.points) {
      double value = is_x ? x : y;
      if (!axis.shows(value) || !std::isfinite(is_x ? y : x)) continue;
      axis.low = first ? value : std::min(axis.low, value);
      axis.high = first ? value : std::max(axis.high, value);
      first = false;
    }
  }
  if (axis.log) {
    if (first) axis.low = 1, axis.high = 10;
    double margin = std::pow(axis.high / axis.low, 0.04);
    axis.low /= std::max(margin, 1.02);
    axis.high *= std::max(margin, 1.02);
  } else {
    double margin = std::max(0.04 * (axis.high - axis.low), 1e-9 * (std::abs(axis.high) + 1));
    axis.low -= margin;
    axis.high += margin;
  }
  return axis;
}

// Round values to label an axis with: decades, or 1-2-5 steps.
std::vector<double> ticks(const Axis& axis, int wanted) {
  std::vector<double> out;
  if (axis.log) {
    double decades = std::log10(axis.high / axis.low);
    std::vector<double> marks = decades > wanted ? std::vector<double>{1}
                                : decades > 1.5  ? std::vector<double>{1, 3}
                                                 : std::vector<double>{1, 2, 3, 5, 7};
    int every = std::max(1, static_cast<int>(std::ceil(decades / wanted)));
    for (int e = static_cast<int>(std::floor(std::log10(axis.low))); e <= std::ceil(std::log10(axis.high)); ++e) {
      if (e % every != 0) continue;
      for (double mark : marks) {
        double value = mark * std::pow(10, e);
        if (value >= axis.low && value <= axis.high) out.push_back(value);
      }
    }
    return out;
  }
  double raw = (axis.high - axis.low) / wanted, power = std::pow(10, std::floor(std::log10(raw))), step = power;
  for (double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= raw) break;
  }
  for (double value = std::ceil(axis.low / step) * step; value <= axis.high; value += step) {
    out.push_back(std::abs(value) < 1e-9 * step ? 0 : value);
  }
  return out;
}

std::string tick_label(double value) {
  if (value != 0 && (std::abs(value) >= 1e15 || std::abs(value) < 1e-3)) return fmt::format("{:.3g}", value);
  if (std::abs(value) >= 1000)
    return fmt::format(
        "{:g}{}", value / std::pow(1000, std::floor(std::log10(std::abs(value)) / 3 + 1e-9)),
        std::string(" KMBTP").substr(static_cast<size_t>(std::floor(std::log10(std::abs(value)) / 3 + 1e-9)), 1));
  return fmt::format("{:.4g}", value);
}

}  // namespace

std::string chart_text(const Chart& chart, int width, int height) {
  const Axis x = make_axis(chart, true), y = make_axis(chart, false);
  std::vector<std::string> grid(static_cast<size_t>(height), std::string(static_cast<size_t>(width), ' '));
  auto put = [&](double px, double py, char mark) {
    if (!x.shows(px) || !y.shows(py)) return;
    int column = static_cast<int>(std::lround(x.share(px) * (width - 1))),
        row = static_cast<int>(std::lround((1 - y.share(py)) * (height - 1)));
    if (column >= 0 && column < width && row >= 0 && row < height)
      grid[static_cast<size_t>(row)][static_cast<size_t>(column)] = mark;
  };
  constexpr std::string_view kMarks = "ox+*#@%&", kLines = ".:~-='";
  size_t line = 0;
  for (const Series& s : chart.series) {  // lines first, so that marks stay on top
    if (!s.line) continue;
    const char dot = kLines[line++ % kLines.size()];
    for (size_t i = 1; i < s.points.size(); ++i) {
      auto [x0, y0] = s.points[i - 1];
      auto [x1, y1] = s.points[i];
      if (!x.shows(x0) || !x.shows(x1) || !y.shows(y0) || !y.shows(y1)) continue;
      for (int k = 0; k <= 40; ++k) {
        double f = k / 40.0;
        put(x.log ? std::exp(std::log(x0) + f * (std::log(x1) - std::log(x0))) : x0 + f * (x1 - x0),
            y.log ? std::exp(std::log(y0) + f * (std::log(y1) - std::log(y0))) : y0 + f * (y1 - y0), dot);
      }
    }
  }
  size_t mark = 0;
  line = 0;
  std::string legend;
  for (const Series& s : chart.series) {
    char c = s.line ? kLines[line++ % kLines.size()] : kMarks[mark++ % kMarks.size()];
    if (!s.name.empty()) legend += fmt::format("  {} {}", c, s.name);
    if (s.line) continue;
    for (auto [px, py] : s.points) put(px, py, c);
  }
  std::string out = chart.title.empty() ? "" : chart.title + "\n";
  std::vector<double> marks = ticks(y, std::max(2, height / 4));
  for (int row = 0; row < height; ++row) {
    std::string label;
    for (double value : marks) {
      if (std::lround((1 - y.share(value)) * (height - 1)) == row) label = tick_label(value);
    }
    out += fmt::format("{:>9} |{}\n", label, grid[static_cast<size_t>(row)]);
  }
  out += fmt::format("{:>9} +{}\n", "", std::string(static_cast<size_t>(width), '-'));
  std::string below(static_cast<size_t>(width) + 12, ' ');
  size_t free_from = 0;
  for (double value : ticks(x, 6)) {
    std::string label = tick_label(value);
    auto at = static_cast<size_t>(
        std::max(0L, 11 + std::lround(x.share(value) * (width - 1)) - static_cast<long>(label.size() / 2)));
    if (at < free_from || at + label.size() > below.size()) continue;
    below.replace(at, label.size(), label);
    free_from = at + label.size() + 1;
  }
  below.erase(below.find_last_not_of(' ') + 1);
  return out + below + fmt::format("\n{:>11}{}; up: {}{}\n", "", chart.x_label, chart.y_label, legend);
}

std::string chart_svg(const Chart& chart, int width, int height) {
  const Axis x = make_axis(chart, true), y = make_axis(chart, false);
  size_t longest = 0;
  for (const Series& s : chart.series) longest = std::max(longest, s.name.size());
  const double left = 70, right = std::min(longest == 0 ? 20 : 44 + 6.6 * static_cast<double>(longest), 0.5 * width);
  const double top = chart.title.empty() ? 10 : 34, bottom = 46, w = width - left - right, h = height - top - bottom;
  auto px = [&](double value) { return left + x.share(value) * w; };
  auto py = [&](double value) { return top + (1 - y.share(value)) * h; };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\" role=\"img\"><title>{}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
      width, height, width, height, escape_html(chart.title));
  out += fmt::format("<text x=\"{}\" y=\"20\" font-size=\"14\" font-weight=\"bold\">{}</text>\n", left,
                     escape_html(chart.title));
  for (double value : ticks(x, 6)) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" "
        "y=\"{3:.1f}\" text-anchor=\"middle\">{4}</text>\n",
        px(value), top, top + h, top + h + 16, tick_label(value));
  }
  for (double value : ticks(y, 6)) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/><text x=\"{3:.1f}\" "
        "y=\"{4:.1f}\" text-anchor=\"end\">{5}</text>\n",
        left, left + w, py(value), left - 6, py(value) + 4, tick_label(value));
  }
  out += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#444\"/>\n", left, top,
                     w, h);
  double ly = top + 12;
  for (size_t i = 0; i < chart.series.size(); ++i) {
    const Series& s = chart.series[i];
    const char* paint = colour(s.colour >= 0 ? static_cast<size_t>(s.colour) : i);
    std::string path;
    for (auto [vx, vy] : s.points) {
      if (!x.shows(vx) || !y.shows(vy)) continue;
      if (s.line) {
        path += fmt::format("{:.1f},{:.1f} ", px(vx), py(vy));
      } else {
        out += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", px(vx), py(vy), paint);
      }
    }
    if (s.line)
      out += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n", path, paint);
    if (s.name.empty()) continue;
    out += fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"{}\" fill=\"{}\"/><text x=\"{}\" y=\"{}\">{}</text>\n",
        left + w + 12, s.line ? ly - 5 : ly - 9, s.line ? 3 : 10, paint, left + w + 30, ly, escape_html(s.name));
    ly += 18;
  }
  out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", left + w / 2, height - 10,
                     escape_html(chart.x_label));
  out += fmt::format("<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n</svg>\n",
                     top + h / 2, escape_html(chart.y_label));
  return out;
}

namespace {

// Names and colours in rows above a chart; `y` moves to the baseline of the last row.
std::string legend_rows(const std::vector<std::string>& names, int width, double& y) {
  std::string out;
  double x = 8;
  for (size_t i = 0; i < names.size(); ++i) {
    const double needed = 30 + 7.2 * static_cast<double>(names[i].size());
    if (x > 8 && x + needed > width) x = 8, y += 17;
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"10\" height=\"10\" fill=\"{}\"/><text x=\"{:.0f}\" "
        "y=\"{:.0f}\">{}</text>\n",
        x, y - 9, colour(i), x + 14, y, escape_html(names[i]));
    x += needed;
  }
  return out;
}

}  // namespace

std::string stacked_bars_svg(const StackedBars& chart, int width) {
  double left = 170, right = 100, legend_y = 37;
  const double row = 26;
  for (const auto& bar : chart.bars) {
    left = std::max(left, 24 + 6.3 * static_cast<double>(bar.label.size()));
    right = std::max(right, 16 + 6.6 * static_cast<double>(bar.note.size()));
  }
  const std::string legend = legend_rows(chart.parts, width, legend_y);
  const double top = legend_y + (chart.limit > 0 ? 35 : 19);
  double most = chart.limit;
  for (const auto& bar : chart.bars) {
    double sum = 0;
    for (double v : bar.values) sum += v;
    most = std::max(most, sum);
  }
  if (!(most > 0)) most = 1;
  const double w = width - left - right, height = top + row * static_cast<double>(chart.bars.size()) + 34;
  Axis axis{0, most * 1.03, false};
  auto px = [&](double value) { return left + axis.share(value) * w; };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"12\" role=\"img\"><title>{2}</title>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
      "<text x=\"8\" y=\"18\" font-size=\"14\" font-weight=\"bold\">{2}</text>\n",
      width, height, escape_html(chart.title));
  out += legend;
  const double end = top + row * static_cast<double>(chart.bars.size());
  std::string notes;
  for (double value : ticks(axis, 6)) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" "
        "text-anchor=\"middle\">{4}</text>\n",
        px(value), top - 6, end, end + 14, tick_label(value));
  }
  for (size_t b = 0; b < chart.bars.size(); ++b) {
    const auto& bar = chart.bars[b];
    double y = top + row * static_cast<double>(b), from = 0;
    out += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 8, y + 14,
                       escape_html(bar.label));
    for (size_t i = 0; i < bar.values.size(); ++i) {
      if (!(bar.values[i] > 1e-6 * most)) continue;  // what rounding left
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\"><title>{}: {:.4g} "
          "{}</title></rect>\n",
          px(from), y, std::max(0.3, px(from + bar.values[i]) - px(from)), row - 8, colour(i),
          escape_html(chart.parts.at(i)), bar.values[i], escape_html(chart.unit));
      from += bar.values[i];
    }
    notes += fmt::format(  // over the line of the limit, and readable there
        "<text x=\"{:.1f}\" y=\"{}\" stroke=\"white\" stroke-width=\"4\" paint-order=\"stroke\">{}</text>\n",
        px(from) + 5, y + 14, escape_html(bar.note));
  }
  if (chart.limit > 0) {
    out += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\" stroke=\"#c00\" stroke-width=\"2\" "
        "stroke-dasharray=\"5 3\"/>"
        "<text x=\"{0:.1f}\" y=\"{3}\" fill=\"#c00\" text-anchor=\"middle\">{4}</text>\n",
        px(chart.limit), top - 8, end, top - 11, escape_html(chart.limit_label));
  }
  return out + notes +
         fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n</svg>\n", left + w / 2, end + 28,
                     escape_html(chart.unit));
}

std::string html_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<table><thead><tr>";
  for (const std::string& cell : header) out += "<th>" + escape_html(cell) + "</th>";
  out += "</tr></thead><tbody>\n";
  for (const auto& row : rows) {
    out += "<tr>";
    for (const std::string& cell : row)  // a number and its unit stay together
      out += (cell.size() <= 24 ? "<td class=\"short\">" : "<td>") + escape_html(cell) + "</td>";
    out += "</tr>\n";
  }
  return out + "</tbody></table>\n";
}

std::string html_page(const std::string& title, const std::vector<PageSection>& sections) {
  std::string out = fmt::format(R"(<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{0}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.5rem; }}
h2 {{ font-size: 1.15rem; margin-top: 2rem; border-bottom: 1px solid #ddd; padding-bottom: .2rem; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 14px; }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #eee; }}
td.short {{ white-space: nowrap; }}
svg {{ max-width: 100%; height: auto; border-radius: 4px; }}
.banner {{ background: #b00020; color: white; padding: .7rem 1rem; border-radius: 4px; font-weight: 600; }}
pre {{ background: #f6f6f6; padding: .8rem; white-space: pre-wrap; font-size: 13px; }}
.note {{ background: #f0a020; color: #222; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #16181c; color: #ddd; }}
  h2 {{ border-color: #444; }}
  th, td {{ border-color: #333; }}
  pre {{ background: #22252b; }}
}}
</style></head><body>
<h1>{0}</h1>
)",
                                escape_html(title));
  for (const PageSection& s : sections) {
    out += fmt::format("<section><h2>{}</h2>\n", escape_html(s.heading));
    if (!s.text.empty()) out += fmt::format("<p>{}</p>\n", escape_html(s.text));
    out += s.html + "</section>\n";
  }
  return out + "</body></html>\n";
}

}  // namespace sinter::base
