// Charts of numbers: in the terminal as characters, in files as SVG, and one self-contained HTML page of them.
#pragma once
#include <string>
#include <utility>
#include <vector>

namespace sinter::base {

struct Series {
  std::string name;  // "" = not in the legend
  std::vector<std::pair<double, double>> points;
  bool line = false;  // joined points; else marks
  int colour = -1;    // -1 = that of its place in the list
};
struct Chart {
  std::string title, x_label, y_label;
  bool log_x = false, log_y = false;
  std::vector<Series> series;
};
// Marks 'o', 'x', '+', ... per series, lines as dots; axes labelled. Points that are not finite (or not positive on a
// logarithmic axis) are left out.
std::string chart_text(const Chart& chart, int width = 72, int height = 18);
std::string chart_svg(const Chart& chart, int width = 640, int height = 400);

// Bars made of parts: memory by part for several layouts or lengths. A limit is drawn as a line across.
struct StackedBars {
  std::string title, unit;
  std::vector<std::string> parts;
  struct Bar {
    std::string label;
    std::vector<double> values;  // one per part
    std::string note;            // after the bar
  };
  std::vector<Bar> bars;
  double limit = 0;
  std::string limit_label;
};
std::string stacked_bars_svg(const StackedBars& chart, int width = 720);

// One section of the page: a heading, text, and finished HTML (an SVG, a table, a <pre>).
struct PageSection {
  std::string heading, text, html;
};
std::string html_page(const std::string& title, const std::vector<PageSection>& sections);
std::string html_table(const std::vector<std::string>& header, const std::vector<std::vector<std::string>>& rows);

}  // namespace sinter::base
