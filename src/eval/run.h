// A run over tasks: documents to questions, questions to answers, answers to scores.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "eval/metrics/metrics.h"
#include "eval/score/backend.h"
#include "eval/tasks/prompt.h"

namespace sinter::eval {

struct RunOptions {
  std::string data_folder;  // before relative file names
  PromptOptions prompt;
  double limit = 0;         // documents of each task: 0 all, below 1 a share of them (rounded up)
  int64_t max_tokens = 0;   // of a generated answer; 0 = the task's
  double temperature = -1;  // of generation; below 0 = the task's
  int64_t bootstrap = 100000;
  bool allows_code = false;
  bool predicts_only = false;  // answers without verdicts
};

// What one filter made of a document's answers, and what that is worth.
struct FilteredAnswer {
  std::vector<std::string> answers;
  SampleMetrics metrics;
};

struct EvalSample {
  Question question;
  std::vector<Score> scores, unconditional;           // of the choices, or of the windows of a rolling text
  std::vector<std::pair<size_t, size_t>> num_tokens;  // (context, continuation) of each, before truncation
  std::vector<GenerationResult> generations;
  std::vector<FilteredAnswer> filtered;  // one per filter of the task
};

struct TaskRun {
  const Task* task = nullptr;
  DocumentSet documents;
  int64_t num_few_shot = 0;
  size_t pool_size = 0;
  std::vector<EvalSample> samples;
  std::vector<Aggregate> aggregates;
};

// Loads the documents and builds every question. Throws base::Error naming file, line and field.
TaskRun prepare_task(const Task& task, const RunOptions& options);

// Called with (requests done, in all).
using OnProgress = std::function<void(size_t done, size_t total)>;
// Asks the backend for all of them together.
void answer_tasks(std::span<TaskRun> runs, ScoringBackend& backend, const RunOptions& options,
                  const OnProgress& progress = {});
// Filters, metrics and aggregates. Tasks that run code are refused unless the options allow it.
void score_task(TaskRun& run, const RunOptions& options);

}  // namespace sinter::eval
