// Sets of real numbers as intervals in a row.
#pragma once
#include <optional>
#include <vector>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {

struct RealInterval {
  long double low, high;
  bool has_low, has_high;  // whether the ends are part of it
  bool operator==(const RealInterval& other) const;
};

using RealSet = std::vector<RealInterval>;  // from left to right, none touching the next

// Of intervals, sets of numbers, unions, intersections, differences and R; of inequalities in one symbol that stands
// alone on a side. nullopt for all others.
std::optional<RealSet> real_set_of(const Math& x);

}  // namespace sinter::eval
