// Whether two TeX expressions have the same value: both are computed at several points with numbers in place of their
// letters, which stands in for a computer algebra system.
#pragma once
#include <string>

namespace sinter::eval {

// False where one of them is no expression of numbers, letters, + - * / ^ !, \frac, \sqrt, \cdot, \times, \pi, usual
// functions and brackets.
bool latex_values_equal(const std::string& a, const std::string& b);

}  // namespace sinter::eval
