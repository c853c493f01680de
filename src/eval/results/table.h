// Results of a run: scores of tasks and groups, and the printed table.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "eval/run.h"
#include "tokenizer/chat_template.h"

namespace sinter::eval {

struct ResultRow {
  std::string name, alias;
  int depth = 0;  // below groups
  bool is_group = false;
  double version = 1;
  int64_t num_few_shot = -1;  // -1: a group of groups
  size_t num_samples = 0;
  std::vector<Aggregate> aggregates;
};

struct ResultTable {
  std::vector<ResultRow> rows;  // groups before their members, by name
  const ResultRow* find(const std::string& name) const;
  // The rows as lm-evaluation-harness prints them, spaces squeezed, without the rulers; groups once more at the end.
  std::vector<std::string> markdown_rows() const;
  std::string to_string() const;  // for people: lined up
};

// Groups of one file appear when one of their tasks ran, groups of other files' tasks when all did.
ResultTable make_results(const std::vector<TaskRun>& runs, const TaskSet& set);

// Messages through a chat template, asking for an answer, or (`continues`) ending with the last message's text.
std::string render_chat(const tokenizer::ChatTemplate& chat, const std::vector<ChatMessage>& messages, bool continues);

}  // namespace sinter::eval
