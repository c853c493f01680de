// Random layouts: a small model of any family, spread over some ranks in some way, valid by construction. What is drawn
// depends on (seed, index, ranks) only, so anyone can draw the same.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "spec/recipe.h"

namespace sinter::eval {

struct LayoutCase {
  spec::Recipe recipe;                               // without data.sources and checkpoint.dir; of one rank
  spec::ParallelSpec layout;                         // what it is trained under
  bool is_resumed = false;                           // its last steps under another layout
  spec::ParallelSpec second = spec::ParallelSpec{};  // that one
  std::vector<std::string> excluded;                 // layouts drawn before them, each with why it cannot be
};

struct LayoutDraw {
  bool in_pairs = false;  // every case is resumed under a second layout
  std::string axis;       // every layout uses this one of layout_axes(); "": any
};
// "dp", "tp", "sp", "pp", "cp", "ep", "zero", "replica", "offload".
std::vector<std::string> layout_axes();

// At most `ranks` ranks, at least two where there are. Throws base::Error where so few cannot use the axis.
LayoutCase draw_layout_case(uint64_t seed, uint64_t index, int64_t ranks, const LayoutDraw& options = {});
std::string describe(const LayoutCase& c);

}  // namespace sinter::eval
