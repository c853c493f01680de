// `sinter eval TASK[,TASK...] MODEL`, `sinter eval kl`, `sinter eval compare`.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "eval/tasks/prompt.h"
#include "tokenizer/chat_template.h"

namespace sinter::cli {

class Command;

// Adds the tasks' options to the verb `eval`.
void add_eval_tasks(Command verb);
void add_eval_comparisons(Command verb);

// The tasks named (tasks, groups, or task files, which `set` receives), in order, each once.
std::vector<std::string> choose_tasks(const std::vector<std::string>& names, eval::TaskSet& set);
// Where data files lie: `given`, the environment's SINTER_EVAL_DATA, else data/eval.
std::string eval_data_folder(const std::string& given);
// Questions through a chat template, as eval::PromptOptions::chat wants it.
std::function<std::string(const std::vector<eval::ChatMessage>&, bool)> chat_renderer(tokenizer::ChatTemplate chat);

}  // namespace sinter::cli
