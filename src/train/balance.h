// Whether the ranks of a run keep each other waiting: who works longest, and how much longer than the others.
#pragma once
#include <string>
#include <vector>

namespace sinter::train {

// working: seconds that each rank did not wait in, of `all` seconds. A line for people; names the rank that the others
// wait for where it works much longer than the median.
std::string describe_balance(const std::vector<double>& working, double all);

}  // namespace sinter::train
