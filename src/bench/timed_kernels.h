// The CPU's kernel table with a clock in front of every entry: where a step's time goes.
#pragma once
#include <string>
#include <vector>

#include "kernels/table.h"

namespace sinter::bench {

struct KernelTime {
  std::string name;  // of the entry in kernels::KernelTable
  double seconds = 0;
  int64_t calls = 0;
};

// Calls pass through to kernels_for(cpu). One table for the program; not for two threads at once.
const kernels::KernelTable& timed_kernels();
// What was spent since the last reset, longest first, entries never called left out.
std::vector<KernelTime> kernel_times();
void reset_kernel_times();

}  // namespace sinter::bench
