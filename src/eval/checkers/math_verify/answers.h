// The answer in a text: where math_verify looks for it, and what it reads there.
#pragma once
#include <string>
#include <vector>

#include "eval/checkers/math_verify/expression.h"

namespace sinter::eval {

struct MathAnswer {
  Math value;        // null where nothing could be read
  std::string text;  // the first place that looks like an answer; "" for none
};

// Looks in turn behind "final answer is ... I hope", behind "final answer is", into boxes, behind "answer:" and
// "answer", and at last for any formula, expression or number; of several the last one in the text that can be read.
MathAnswer find_math_answer(const std::string& text);

}  // namespace sinter::eval
