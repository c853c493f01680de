// The CPU's kernel table with a clock in front of every entry: where a step's time goes.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace sinter::bench {

struct KernelClock {
  std::string name;  // of the entry in kernels::KernelTable
  double seconds = 0;
  int64_t calls = 0;
};

// One call: which entry (its place in the table of clocks) and how long.
struct KernelCall {
  size_t entry = 0;
  double seconds = 0;
};

// Calls pass through to kernels_for(cpu). One table for the program; not for two threads at once.
const kernels::KernelTable& timed_kernels();
// The calls since the last reset in their order, and the sums of such a list by entry, longest first.
const std::vector<KernelCall>& kernel_calls();
std::vector<KernelClock> kernel_times(const std::vector<KernelCall>& calls);
void reset_kernel_times();

}  // namespace sinter::bench
