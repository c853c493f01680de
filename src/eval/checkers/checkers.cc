#include "eval/checkers/checkers.h"

#include "base/error.h"

namespace sinter::eval {

SampleMetrics check_answers(const Task& task, const Document&, const std::string&, std::span<const std::string>) {
  base::fail("'{}': there is no checker '{}' yet", task.origin, task.checker);
}

void check_code_allowed(const Task& task, bool is_allowed) {
  SINTER_CHECK(is_allowed,
               "task {} runs programs that the model writes: say --allow-code to run them in a sandbox without network "
               "and files",
               task.name);
}

}  // namespace sinter::eval
