// What is done with generated texts before they are compared: regular expressions, first, majority.
#pragma once
#include <string>
#include <vector>

#include "eval/tasks/task.h"

namespace sinter::eval {

// All answers of one document in, those that are compared out (one after `first` and `majority`).
std::vector<std::string> apply_filter(const AnswerFilter& filter, std::vector<std::string> answers);

// A text up to the first of each stop text in turn.
std::string cut_at_stops(std::string text, const std::vector<std::string>& stops);

}  // namespace sinter::eval
