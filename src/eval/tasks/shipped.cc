#include "eval/tasks/task.h"

namespace sinter::eval {

extern const std::vector<std::pair<const char*, const char*>> kShippedTasks;  // file name and text

const TaskSet& shipped_tasks() {
  static const TaskSet kSet = [] {
    TaskSet set;
    for (const auto& [name, text] : kShippedTasks) read_task_file(text, name, set);
    return set;
  }();
  return kSet;
}

}  // namespace sinter::eval
