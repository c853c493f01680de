// IFEval's instructions: whether an answer follows each of them.
#pragma once
#include <string>
#include <vector>

#include "eval/metrics/metrics.h"

namespace sinter::eval {

bool follows_instruction(const std::string& id, const Value& arguments, const std::string& answer);
// Any of eight forms of the answer: with and without its first and last line, and those without "*".
bool follows_loosely(const std::string& id, const Value& arguments, const std::string& answer);

// Prompt and instruction level, strict and loose, of a document with instruction_id_list and kwargs.
SampleMetrics ifeval_metrics(const TaskDocument& document, const std::string& answer);

}  // namespace sinter::eval
