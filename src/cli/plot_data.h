// Curves out of metrics files, for `sinter plot`.
#pragma once
#include <string>
#include <vector>

#include "base/chart.h"

namespace sinter::cli {

// One run as its metrics.jsonl tells it.
struct RunCurves {
  std::string name;
  struct Line {
    double step = 0, tokens = 0, seconds = 0;  // seconds since the first line's step began
    std::vector<std::pair<std::string, double>> values;
  };
  std::vector<Line> lines;
};

// `path`: a run's folder or a metrics file. A last line that is cut off (of a run under way) is left out. Throws
// base::Error naming the file, and the line that is no object with a step.
RunCurves read_curves(const std::string& path);

struct PlotWish {
  std::string x = "step";  // step, tokens or hours
  double smooth = 0;       // weight of what was before, 0 to 0.999, debiased
  bool log_x = false, log_y = false;
};
// All points of one key over the runs, NAME's own curve for each; runs without it are left out. The validation loss is
// drawn as marks beside `loss`.
base::Chart make_curve_chart(const std::vector<RunCurves>& runs, const std::string& key, const PlotWish& wish);
// The keys that any of the runs has, in a fixed order, the usual ones first.
std::vector<std::string> curve_keys(const std::vector<RunCurves>& runs);

}  // namespace sinter::cli
