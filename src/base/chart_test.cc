#include "base/chart.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace sinter::base {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

Chart sample() {
  return {"losses", "parameters",
          "loss",   true,
          false,    {{"runs", {{1e7, 4.0}, {1e8, 3.0}, {1e9, 3.5}}}, {"fit", {{1e7, 4.1}, {1e9, 3.4}}, true}}};
}

TEST(Chart, TextHoldsEveryMarkAndFitsItsWidth) {
  std::string text = chart_text(sample(), 60, 12);
  std::string plot = text.substr(text.find("\n"), text.find("parameters") - text.find("\n"));
  EXPECT_EQ(count(plot, "o"), 3u) << text;
  EXPECT_NE(text.find("parameters"), std::string::npos);
  size_t lines = 0;
  for (size_t begin = 0; begin < text.size(); ++lines) {
    size_t end = text.find('\n', begin);
    if (lines >= 1 && lines <= 13) {
      EXPECT_LE(end - begin, 72u);
    }
    begin = end + 1;
  }
  EXPECT_EQ(lines, 1 + 12 + 3u);
}

TEST(Chart, SvgDrawsOneCirclePerPointAndOneLinePerLine) {
  std::string svg = chart_svg(sample());
  EXPECT_EQ(count(svg, "<circle"), 3u);
  EXPECT_EQ(count(svg, "<polyline"), 1u);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
}

TEST(Chart, PointsThatCannotBeDrawnAreLeftOut) {
  Chart chart = sample();
  chart.series[0].points.push_back({-1, 2});
  chart.series[0].points.push_back({1e8, std::numeric_limits<double>::infinity()});
  EXPECT_EQ(count(chart_svg(chart), "<circle"), 3u);
  Chart empty{"t", "x", "y"};
  EXPECT_EQ(chart_svg(empty).find("nan"), std::string::npos);
  EXPECT_FALSE(chart_text(empty).empty());
  Chart single{"t", "x", "y", true, true, {{"s", {{5, 5}}}}};
  EXPECT_EQ(count(chart_svg(single), "<circle"), 1u);
}

TEST(Chart, StackedBarsHaveOneRectanglePerPositivePart) {
  StackedBars bars{"memory", "GiB",   {"weights", "activations"}, {{"4k", {10, 5}, "15"}, {"8k", {10, 0}, "10"}},
                   80,       "80 GiB"};
  std::string svg = stacked_bars_svg(bars);
  EXPECT_EQ(count(svg, "<title>weights: 10 GiB"), 2u);
  EXPECT_EQ(count(svg, "<title>activations"), 1u);
  EXPECT_EQ(count(svg, "stroke-dasharray"), 1u);
}

TEST(Chart, PageIsSelfContainedAndEscapesText) {
  std::string page = html_page("a <b>", {{"x & y", "1 < 2", "<svg></svg>"}});
  EXPECT_NE(page.find("a &lt;b&gt;"), std::string::npos);
  EXPECT_NE(page.find("x &amp; y"), std::string::npos);
  EXPECT_NE(page.find("<svg></svg>"), std::string::npos);
  EXPECT_EQ(page.find("<script"), std::string::npos);
  EXPECT_EQ(page.find("src="), std::string::npos);
  EXPECT_EQ(page.find("<link"), std::string::npos);
}

}  // namespace
}  // namespace sinter::base
