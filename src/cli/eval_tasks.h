// `sinter eval TASK[,TASK...] MODEL`.
#pragma once

namespace sinter::cli {

class Command;

// Adds the tasks' options to the verb `eval`.
void add_eval_tasks(Command verb);

}  // namespace sinter::cli
