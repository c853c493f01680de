// Two runs over the same samples, side by side.
#pragma once
#include <string>
#include <vector>

namespace sinter::eval {

struct Comparison {
  std::string task, filter, metric;
  size_t num_samples = 0;
  double a = 0, b = 0;                // means
  double difference = 0;              // b - a
  double low = 0, high = 0;           // 95 % of the differences of paired bootstrap draws
  double p_value = 1;                 // two-sided: how often a draw has the other sign
  std::vector<int64_t> gained, lost;  // documents that b has right and a wrong, and the other way
};

// Folders that `sinter eval --output` wrote. Tasks and documents that only one of them has are left out. Throws
// base::Error where nothing is left, or where the documents differ.
std::vector<Comparison> compare_runs(const std::string& folder_a, const std::string& folder_b, int64_t rounds = 10000);

}  // namespace sinter::eval
