// The comparisons of one published row, by kind of measurement.
#pragma once
#include <vector>

#include "plan/check/check.h"

namespace sinter::plan {

// Appends what can be predicted of the row. Throws base::Error when its numbers do not fit together.
void compare_row(const CheckRow& row, std::vector<CheckedNumber>& out);

}  // namespace sinter::plan
