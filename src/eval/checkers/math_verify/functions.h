// The functions that LaTeX has commands for.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {

// nullopt for a name that is none of them. The arguments of "log" are the number and the base.
std::optional<MathValue> known_function(const std::string& name, const std::vector<MathValue>& arguments);

}  // namespace sinter::eval
