#include "eval/tasks/prompt.h"

#include <algorithm>

#include "base/error.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using jinja::Kind;

bool ends_in_space(const std::string& text) { return jinja::strip(text, nullptr, false, true).size() != text.size(); }
bool begins_with_space(const std::string& text) {
  return jinja::strip(text, nullptr, true, false).size() != text.size();
}

// The index of the right choice: a number, digits, or the choice's own text. -1 for none of them.
int64_t gold_index(const Value& target, const std::vector<std::string>& choices) {
  if (target.is_whole()) return target.integer();
  const std::string text = value_text(target);
  const bool is_number =
      !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (is_number && text.size() < 10) return std::stoll(text);
  auto found = std::find(choices.begin(), choices.end(), text);
  return found == choices.end() ? -1 : found - choices.begin();
}

}  // namespace

DocumentSet load_pool(const Task& task, int64_t num_few_shot, const std::string& folder) {
  DocumentSet pool;
  if (num_few_shot == 0) return pool;
  if (task.few_shot.split.empty() && !task.few_shot.examples.empty()) {
    pool.path = task.origin;
    pool.documents = task.few_shot.examples;
    pool.lines.assign(pool.documents.size(), 0);
    return pool;
  }
  if (!task.few_shot.split.empty()) return load_split(task, task.few_shot.split, folder);
  for (const char* split : {"train", "validation", "test"}) {
    if (task.data.contains(split)) return load_split(task, split, folder);
  }
  return pool;
}

PromptBuilder::PromptBuilder(const Task& task, const DocumentSet& evaluated, const DocumentSet& pool,
                             const PromptOptions& options)
    : task_(task),
      evaluated_(evaluated),
      pool_(pool),
      options_(options),
      random_(options.seed.value_or(task.few_shot.seed)),
      count_(task.few_shot.is_fixed ? task.few_shot.count : options.num_few_shot.value_or(task.few_shot.count)) {
  SINTER_CHECK(count_ >= 0, "task {}: {} examples asked for", task.name, count_);
  SINTER_CHECK(static_cast<size_t>(count_) <= pool.size(), "task {}: {} examples asked for, but '{}' has {}", task.name,
               count_, pool.path, pool.size());
}

// lm-evaluation-harness draws one more where the pool may hold the document itself, which it takes for granted when
// neither split is named.
std::vector<size_t> PromptBuilder::draw(const TaskDocument& document) {
  std::vector<size_t> places;
  const auto n = static_cast<size_t>(count_);
  if (n == 0) return places;
  if (task_.few_shot.takes_first) {
    for (size_t i = 0; i < n; ++i) places.push_back(i);
    return places;
  }
  const std::string test = task_.data.contains("test") ? "test" : "";
  const bool drops = task_.few_shot.split == test;
  const auto size = static_cast<uint32_t>(pool_.size());
  const std::vector<uint32_t> drawn =
      random_.sample(size, static_cast<uint32_t>(std::min<size_t>(n + (drops ? 1 : 0), size)));
  for (uint32_t place : drawn) {
    if (places.size() < n && !(drops && values_equal(pool_.documents[place], document))) places.push_back(place);
  }
  if (places.size() == n) return places;
  std::vector<size_t> others;  // copies of the document took too many places
  for (size_t i = 0; i < pool_.size(); ++i) {
    if (!values_equal(pool_.documents[i], document)) others.push_back(i);
  }
  places.clear();
  for (uint32_t place : random_.sample(static_cast<uint32_t>(others.size()), static_cast<uint32_t>(n))) {
    places.push_back(others[place]);
  }
  return places;
}

PromptBuilder::Example PromptBuilder::example_of(const TaskDocument& document) const {
  const std::vector<std::pair<std::string, Value>> mark{{"is_fewshot", Value(true)}};
  if (task_.contexts.is_set()) {
    const std::vector<std::string> contexts = text_list(task_.contexts.evaluate(document, mark));
    const int64_t gold = gold_index(task_.target.evaluate(document, mark), contexts);
    SINTER_CHECK(gold >= 0 && gold < static_cast<int64_t>(contexts.size()),
                 "target gives {}, but there are {} contexts", gold, contexts.size());
    return {contexts[static_cast<size_t>(gold)], task_.continuation.text(document, mark)};
  }
  Example example{task_.context.text(document, mark), ""};
  const Value target = task_.target.evaluate(document, mark);
  if (task_.choices.is_set()) {
    const std::vector<std::string> choices = text_list(task_.choices.evaluate(document, mark));
    const int64_t gold = gold_index(target, choices);
    SINTER_CHECK(gold >= 0 && gold < static_cast<int64_t>(choices.size()), "target gives {}, but there are {} choices",
                 gold, choices.size());
    example.answer = choices[static_cast<size_t>(gold)];
  } else {
    example.answer = value_text(target);
  }
  return example;
}

std::string PromptBuilder::head(const TaskDocument& document) const {
  const std::string description = task_.description.is_set() ? task_.description.render(document) : "";
  const std::string& system = options_.system;
  if (system.empty() || description.empty()) return system + description;
  const bool has_space = ends_in_space(system) || begins_with_space(description);
  return system + (has_space ? "" : task_.example_delimiter) + description;
}

std::string PromptBuilder::build(const TaskDocument& document, const std::vector<Example>& examples,
                                 const std::string& question) const {
  if (options_.chat) return build_chat(document, examples, question);
  std::string text = head(document);
  for (const Example& e : examples) text += e.question + task_.target_delimiter + e.answer + task_.example_delimiter;
  text += question;
  if (task_.prefix.is_set()) {
    const std::string prefix = task_.prefix.text(document);
    text += (ends_in_space(text) || begins_with_space(prefix) ? "" : task_.target_delimiter) + prefix;
  }
  return text;
}

std::string PromptBuilder::build_chat(const TaskDocument& document, const std::vector<Example>& examples,
                                      const std::string& question) const {
  std::vector<ChatMessage> messages;
  if (std::string system = head(document); !system.empty()) messages.push_back({"system", system});
  if (options_.is_multiturn) {
    for (const Example& e : examples) {
      messages.push_back({"user", e.question});
      messages.push_back({"assistant", e.answer});
    }
    messages.push_back({"user", question});
  } else {
    std::string text;
    for (const Example& e : examples) text += e.question + task_.target_delimiter + e.answer + task_.example_delimiter;
    messages.push_back({"user", text + question});
  }
  if (task_.prefix.is_set()) messages.push_back({"assistant", task_.prefix.text(document)});
  return options_.chat(messages, task_.prefix.is_set());
}

void PromptBuilder::add_choices(const TaskDocument& document, const std::vector<Example>& examples,
                                Question& question) const {
  std::string delimiter = task_.target_delimiter;
  if (options_.chat && !(task_.prefix.is_set() && !ends_in_space(task_.prefix.text(document)))) delimiter = "";
  if (task_.contexts.is_set()) {
    question.choices = text_list(task_.contexts.evaluate(document));
    for (const std::string& context : question.choices) question.contexts.push_back(build(document, examples, context));
    question.continuations.push_back(delimiter + task_.continuation.text(document));
  } else {
    question.choices = text_list(task_.choices.evaluate(document));
    question.contexts.push_back(build(document, examples, task_.context.text(document)));
    for (const std::string& choice : question.choices) question.continuations.push_back(delimiter + choice);
  }
  question.gold = gold_index(task_.target.evaluate(document), question.choices);
  SINTER_CHECK(question.gold < static_cast<int64_t>(question.choices.size()),
               "target gives {}, but there are {} choices", question.gold, question.choices.size());
}

Question PromptBuilder::next() {
  Question question;
  question.document = at_++;
  const TaskDocument& document = evaluated_.documents[question.document];
  question.examples = draw(document);
  std::vector<Example> examples;
  size_t failing = pool_.size();  // the example that is being made; none
  try {
    for (size_t place : question.examples) {
      failing = place;
      examples.push_back(example_of(pool_.documents[place]));
    }
    failing = pool_.size();
    switch (task_.kind) {
      case TaskKind::multiple_choice:
        add_choices(document, examples, question);
        break;
      case TaskKind::log_likelihood:
        question.contexts.push_back(build(document, examples, task_.context.text(document)));
        question.target = task_.target.text(document);
        question.continuations.push_back(question.target);
        break;
      case TaskKind::rolling:
        question.target = task_.target.text(document);
        break;
      case TaskKind::generate:
        question.contexts.push_back(build(document, examples, task_.context.text(document)));
        if (task_.target.is_set()) question.target = task_.target.text(document);
        break;
    }
  } catch (const base::Error& e) {
    const bool is_example = failing < pool_.size();
    base::fail("{}: {}", is_example ? pool_.place(failing) : evaluated_.place(question.document), e.what());
  }
  return question;
}

}  // namespace sinter::eval
