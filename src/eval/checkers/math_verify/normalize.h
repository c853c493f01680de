// LaTeX of answers in one spelling, by the rules of latex2sympy2_extended's normalization.
#pragma once
#include <string>

namespace sinter::eval {

enum class Boxes { all, last };

// What stands in the boxes of a text: of all of them, or of the last one and those right before it. The text itself
// where there is none.
std::string boxed_content(const std::string& text, Boxes boxes);

// Without units, words of spacing and signs of money; fractions, roots and powers with their braces.
std::string normalize_latex(std::string latex, Boxes boxes);

}  // namespace sinter::eval
