// `sinter eval TASK[,TASK...] MODEL`, `sinter eval kl`, `sinter eval compare`.
#pragma once

namespace sinter::cli {

class Command;

// Adds the tasks' options to the verb `eval`.
void add_eval_tasks(Command verb);
void add_eval_comparisons(Command verb);

}  // namespace sinter::cli
