#include "eval/checkers/checkers.h"

#include "base/error.h"
#include "base/threads.h"
#include "eval/checkers/bfcl.h"
#include "eval/checkers/ifeval.h"
#include "eval/checkers/math.h"
#include "eval/checkers/math_verify/compare.h"
#include "eval/sandbox/sandbox.h"

namespace sinter::eval {
namespace {

// Programs made of the answers, run one by one.
SampleMetrics check_code(const Task& task, const TaskDocument& document, const std::string& target,
                         std::span<const std::string> answers) {
  int64_t num_passed = 0;
  for (const std::string& answer : answers) {
    const std::string program =
        task.program.is_set() ? task.program.text(document, {{"answer", Value(answer)}}) : answer + "\n" + target;
    num_passed += run_python(program).passed;
  }
  SampleMetrics metrics;
  const auto n = static_cast<int64_t>(answers.size());
  for (const MetricSpec& spec : task.metrics) {
    for (int64_t k : spec.k.empty() ? std::vector<int64_t>{1} : spec.k) {
      if (k > n) continue;
      const std::string name = spec.k.empty() ? spec.name : fmt::format("{}@{}", spec.name, k);
      metrics.push_back({name, pass_at_k(n, num_passed, k), 1});
    }
  }
  return metrics;
}

SampleMetrics check_math(const Task& task, const TaskDocument& document, const std::string& answer) {
  const Value* solution = find_field(document, "solution");
  SINTER_CHECK(solution, "'solution' is undefined");
  const auto boxed = last_boxed(value_text(*solution));
  const auto wanted = boxed ? unbox(*boxed) : std::nullopt;
  SINTER_CHECK(wanted.has_value(), "the solution has no \\boxed answer");
  auto metric = [](const char* name, bool is_right) { return SampleMetric{name, is_right ? 1.0 : 0.0, 1}; };
  if (task.checker == "hendrycks_math") {
    return {metric("exact_match", hendrycks_equal(hendrycks_answer(answer), *wanted))};
  }
  const bool is_equal = minerva_equal(minerva_normalize(minerva_answer(answer)), minerva_normalize(*wanted));
  return {metric("exact_match", is_equal), metric("math_verify", math_verified(value_text(*solution), answer))};
}

}  // namespace

SampleMetrics check_answers(const Task& task, const TaskDocument& document, const std::string& target,
                            std::span<const std::string> answers) {
  SINTER_CHECK(!answers.empty(), "there is no answer");
  if (task.checker == "code") return check_code(task, document, target, answers);
  if (task.checker == "ifeval") return ifeval_metrics(document, answers[0]);
  if (task.checker == "bfcl") return {{"acc", check_calls(document, answers[0]) ? 1.0 : 0.0, 1}};
  return check_math(task, document, answers[0]);
}

void check_code_allowed(const Task& task, bool is_allowed) {
  SINTER_CHECK(is_allowed,
               "task {} runs programs that the model writes: say --allow-code to run them in a sandbox without network "
               "and files",
               task.name);
  SINTER_CHECK(sandbox_problem().empty(), "task {} runs programs, and they cannot be run safely here: {}", task.name,
               sandbox_problem());
}

}  // namespace sinter::eval
