// Verdicts that need more than comparing texts: programs, instructions, mathematics, function calls.
#pragma once
#include <span>
#include <string>

#include "eval/metrics/metrics.h"

namespace sinter::eval {

// What the task's checker says about the answers to one document.
SampleMetrics check_answers(const Task& task, const TaskDocument& document, const std::string& target,
                            std::span<const std::string> answers);

// Throws base::Error unless running programs was asked for and a sandbox works here.
void check_code_allowed(const Task& task, bool is_allowed);

}  // namespace sinter::eval
