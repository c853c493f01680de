// A task: what is asked of a model, over which documents, and how answers are counted. Read from a task file
// (docs/evaluation.md); the shipped ones are part of the program.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "eval/tasks/documents.h"
#include "eval/tasks/template.h"

namespace sinter::eval {

enum class TaskKind { multiple_choice, log_likelihood, rolling, generate };

// One step of what is done with a generated text before it is compared.
struct FilterStep {
  enum class Kind { regex, first, majority, strip_left, strip, lower, choice_letter } kind = Kind::first;
  std::string pattern;  // regex
  int64_t group = 0;    // which match: 0 the first, -1 the last
  std::string fallback = "[invalid]";
};
struct AnswerFilter {
  std::string name = "none";
  std::vector<FilterStep> steps;
};

struct MetricSpec {
  std::string name;  // "acc", "exact_match", ...
  bool ignores_case = false, ignores_punctuation = false, ignores_numbers = false;
  std::vector<std::string> ignored;  // regular expressions removed from answer and target
  std::vector<int64_t> k;            // pass@k
  bool higher_is_better = true;
};

struct FewShotSpec {
  int64_t count = 0;
  bool is_fixed = false;     // the command line cannot change the count
  std::string split;         // "" = the examples, else train, validation, test: the first there is
  bool takes_first = false;  // the first `count` of the pool instead of a random draw
  uint64_t seed = 1234;
  std::vector<TaskDocument> examples;
};

struct GenerationSpec {
  std::vector<std::string> until;
  int64_t max_tokens = 256;
  double temperature = 0, top_p = 1;
  int64_t repeats = 1;  // answers per document
};

struct Task {
  std::string name, alias, group;
  std::string origin;  // the file, for errors
  std::string source;  // the file's text
  std::string obtain;  // where the data comes from, for people
  double version = 1;
  TaskKind kind = TaskKind::multiple_choice;
  std::map<std::string, std::string> data;                 // split to file
  std::map<std::string, std::vector<std::string>> others;  // split to files that do as well
  std::vector<std::string> columns;                        // of CSV data without a header
  std::string split;                                       // evaluated: "test" if there is one, else "validation"
  std::vector<std::pair<std::string, Template>> fields;    // computed fields, in order
  Template description, context, choices, target, contexts, continuation, labels, prefix, keep;
  Template program;  // checker "code": what is run, with the variable `answer`
  std::string target_delimiter = " ", example_delimiter = "\n\n";
  FewShotSpec few_shot;
  GenerationSpec generation;
  std::vector<AnswerFilter> filters;  // at least one
  std::vector<MetricSpec> metrics;
  std::string checker;  // "", "code", "ifeval", "hendrycks_math", "minerva_math", "bfcl"
  double baseline = 0;  // accuracy of guessing, for centred scores

  bool runs_code() const { return checker == "code"; }
};

// Tasks that are reported together. Members are tasks or further groups.
struct TaskGroup {
  std::string name, alias;
  std::vector<std::string> members;
  bool is_centered = false;  // mean of (acc - baseline) / (1 - baseline) instead of the mean weighted by size
  double version = 1;
};

// Tasks and groups of one file, or of all shipped ones.
struct TaskSet {
  std::map<std::string, Task> tasks;
  std::map<std::string, TaskGroup> groups;
  std::vector<std::string> order;  // tasks in the order in which they were read

  // The tasks below a name, in order. Throws base::Error with the nearest name when there is none.
  std::vector<std::string> members_of(const std::string& name) const;
};

// Parses a task file's text; `origin` stands in errors. Unknown keys are errors that suggest the nearest name.
void read_task_file(std::string_view text, const std::string& origin, TaskSet& set);
const TaskSet& shipped_tasks();

// The documents of a split with the computed fields added and those dropped that `keep` refuses.
// `folder` stands before the file's name where it is relative.
DocumentSet load_split(const Task& task, const std::string& split, const std::string& folder);

}  // namespace sinter::eval
