// LaTeX as trees, by the grammar of latex2sympy2_extended, which math_verify reads answers with.
#pragma once
#include <string>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {

// Elements beside commas are a set, (a, b) is an interval, (a, b, c) a tuple; \text{word} is a symbol; upper and lower
// case are one; 90^\circ is 90; 2\frac{1}{2} is 5/2; "x = 5" is a relation. `is_complex` where symbols are not known to
// be real. Throws MathFailure for what the grammar does not know.
Math read_latex(const std::string& latex, bool is_complex);

// What Python reads in digits, signs and parentheses: "2*(3+4)", "1/2". Throws MathFailure.
Math read_arithmetic(const std::string& text);

}  // namespace sinter::eval
