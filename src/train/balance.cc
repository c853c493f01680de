#include "train/balance.h"

#include <fmt/format.h>

#include <algorithm>

namespace sinter::train {

std::string describe_balance(const std::vector<double>& working, double all) {
  constexpr double kMuch = 1.15;
  std::vector<double> sorted = working;
  std::sort(sorted.begin(), sorted.end());
  const double median = sorted[sorted.size() / 2], longest = sorted.back();
  const auto slowest = std::max_element(working.begin(), working.end()) - working.begin();
  const double share = 100 / std::max(all, 1e-9);
  std::string text =
      fmt::format("ranks: they worked {:.0f} to {:.0f} % of the time and waited for each other in the rest",
                  sorted.front() * share, longest * share);
  if (longest > kMuch * median)
    text += fmt::format(
        "; rank {} worked {:.1f} times as long as the median: the others wait for it (a slow machine, "
        "or more than its share of the layers or tokens)",
        slowest, longest / std::max(median, 1e-9));
  return text;
}

}  // namespace sinter::train
