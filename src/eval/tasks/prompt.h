// What is asked for each document of a task: contexts, continuations, few-shot examples and chat turns, by the rules of
// lm-evaluation-harness.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "eval/tasks/python_random.h"
#include "eval/tasks/task.h"

namespace sinter::eval {

struct ChatMessage {
  std::string role, content;
};

struct PromptOptions {
  std::optional<int64_t> num_few_shot;  // else the task's own
  std::optional<uint64_t> seed;
  std::string system;  // instruction before everything
  // Renders messages as the model's chat template does; empty: plain text. With `continues` the last message is the
  // beginning of an answer, and the text ends with it.
  std::function<std::string(const std::vector<ChatMessage>& messages, bool continues)> chat;
  bool is_multiturn = true;  // examples are turns of the chat; else all is one message of the user
};

// One document's questions. A choice is contexts[i] (or the only one) followed by continuations[i] (or the only one).
struct Question {
  size_t document = 0;                     // in the evaluated split
  std::vector<size_t> examples;            // places in the few-shot pool, in the order used
  std::vector<std::string> contexts;       // one, or one per choice
  std::vector<std::string> continuations;  // one, or one per choice; none for generation
  std::vector<std::string> choices;        // their texts without delimiter
  int64_t gold = -1;                       // which choice is right; -1: no one
  std::string target;                      // log-likelihood, rolling and generation
  size_t num_choices() const { return std::max(contexts.size(), continuations.size()); }
  const std::string& context(size_t i) const { return contexts[contexts.size() > 1 ? i : 0]; }
  const std::string& continuation(size_t i) const { return continuations[continuations.size() > 1 ? i : 0]; }
};

class PromptBuilder {
 public:
  // `evaluated` are the documents that are asked about, `pool` those that examples are drawn from (may be empty without
  // examples). All must outlive it.
  PromptBuilder(const Task& task, const DocumentSet& evaluated, const DocumentSet& pool, const PromptOptions& options);
  // Documents are asked for in order, each once: examples come from one stream of random numbers. Errors name the
  // document's file and line.
  Question next();
  bool has_next() const { return at_ < evaluated_.size(); }
  int64_t num_few_shot() const { return count_; }

 private:
  struct Example {
    std::string question, answer;  // answer without delimiter
  };
  std::vector<size_t> draw(const TaskDocument& document);
  Example example_of(const TaskDocument& document) const;
  std::string head(const TaskDocument& document) const;  // system instruction and description
  std::string build(const TaskDocument& document, const std::vector<Example>& examples,
                    const std::string& question) const;
  std::string build_chat(const TaskDocument& document, const std::vector<Example>& examples,
                         const std::string& question) const;
  void add_choices(const TaskDocument& document, const std::vector<Example>& examples, Question& question) const;

  const Task& task_;
  const DocumentSet &evaluated_, &pool_;
  PromptOptions options_;
  PythonRandom random_;
  int64_t count_;
  size_t at_ = 0;
};

// The pool of a task's examples: its split, its own examples, else train, validation, test. Empty without examples.
DocumentSet load_pool(const Task& task, int64_t num_few_shot, const std::string& folder);

}  // namespace sinter::eval
