// Whether two answers are the same thing, by the rules of math_verify.
#pragma once
#include <string>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {

// `wanted` decides the form: "x = 5" counts as 5 where 5 is wanted. Numbers with a point are compared to six places;
// formulas by their values at random points; equations in several unknowns up to a factor; sets whatever their order,
// tuples in theirs.
bool same_answer(const Math& wanted, const Math& given);

// The verdict on an answer in its text beside a solution.
bool math_verified(const std::string& solution, const std::string& answer);

}  // namespace sinter::eval
