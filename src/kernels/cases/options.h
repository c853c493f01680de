// What the command line of a program of cases says, and what its cases count.
#pragma once
#include <cstdint>

namespace sinter::kernels::cases {

struct Options {
  bool small = false;        // --small
  bool prints = false;       // --print
  int64_t num_compared = 0;  // tensors, at each level
};
Options& options();

}  // namespace sinter::kernels::cases
