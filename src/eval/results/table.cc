#include "eval/results/table.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/text.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;

// The mean weighted by size and the pooled standard error over the tasks below a group.
Aggregate pool(const std::vector<std::pair<const Aggregate*, size_t>>& parts) {
  Aggregate result = *parts[0].first;
  double sum = 0, count = 0, squares = 0;
  bool has_errors = true;
  for (const auto& [part, n] : parts) {
    const auto size = static_cast<double>(n);
    sum += part->value * size;
    count += size;
    has_errors = has_errors && part->error.has_value();
    if (part->error) squares += (size - 1) * *part->error * *part->error * size;
  }
  result.value = sum / count;
  result.error.reset();
  const double freedom = count - static_cast<double>(parts.size());
  if (has_errors && freedom > 0) result.error = std::sqrt(squares / freedom / count);
  return result;
}

// The mean over tasks of (first metric - guessing) / (1 - guessing).
Aggregate center(const std::vector<const TaskRun*>& tasks) {
  Aggregate result;
  result.metric = "centered";
  for (const TaskRun* run : tasks) {
    const double base = run->task->baseline;
    result.value += (run->aggregates[0].value - base) / (1 - base) / static_cast<double>(tasks.size());
  }
  return result;
}

struct Builder {
  const std::vector<TaskRun>& runs;
  const TaskSet& set;
  ResultTable table;
  std::set<std::string> done;

  const TaskRun* run_of(const std::string& name) const {
    for (const TaskRun& run : runs) {
      if (run.task->name == name) return &run;
    }
    return nullptr;
  }
  std::vector<const TaskRun*> below(const std::string& name) const {
    std::vector<const TaskRun*> found;
    for (const std::string& member : set.members_of(name)) {
      if (const TaskRun* run = run_of(member)) found.push_back(run);
    }
    return found;
  }
  void add_task(const TaskRun& run, int depth) {
    done.insert(run.task->name);
    table.rows.push_back({run.task->name, run.task->alias, depth, false, run.task->version, run.num_few_shot,
                          run.samples.size(), run.aggregates});
  }
  void add_group(const TaskGroup& group, int depth) {
    done.insert(group.name);
    ResultRow row{group.name, group.alias, depth, true, group.version, -1, 0, {}};
    const std::vector<const TaskRun*> tasks = below(group.name);
    bool has_groups = false;
    for (const std::string& member : group.members) has_groups = has_groups || set.groups.contains(member);
    if (!has_groups) row.num_few_shot = tasks[0]->num_few_shot;
    for (const TaskRun* task : tasks) row.num_samples += task->samples.size();
    if (group.is_centered) row.aggregates.push_back(center(tasks));
    for (const Aggregate& first : tasks[0]->aggregates) {
      if (group.is_centered) break;
      std::vector<std::pair<const Aggregate*, size_t>> parts;
      for (const TaskRun* task : tasks) {
        for (const Aggregate& a : task->aggregates) {
          if (a.metric == first.metric && a.filter == first.filter) parts.emplace_back(&a, task->samples.size());
        }
      }
      if (parts.size() != tasks.size()) continue;  // not every member has it
      row.aggregates.push_back(pool(parts));
    }
    table.rows.push_back(std::move(row));
    std::vector<std::string> members = group.members;
    std::sort(members.begin(), members.end());
    for (const std::string& member : members) {
      if (auto inner = set.groups.find(member); inner != set.groups.end()) {
        if (!below(member).empty()) add_group(inner->second, depth + 1);
      } else if (const TaskRun* run = run_of(member)) {
        add_task(*run, depth + 1);
      }
    }
  }
};

// Four decimals, then without the zeros that no number of the column needs, as lm-evaluation-harness's printer does.
int needed_decimals(double value) {
  std::string text = fmt::format("{:.4f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  return static_cast<int>(text.size() - text.find('.') - 1);
}

struct Cells {
  std::string task, version, filter, shots, metric, arrow;
  double value = 0;
  std::optional<double> error;
};

std::vector<std::string> print_block(const std::vector<ResultRow>& rows, const char* title) {
  std::vector<Cells> lines;
  for (const ResultRow& row : rows) {
    std::vector<Aggregate> sorted = row.aggregates;
    std::sort(sorted.begin(), sorted.end(), [](const Aggregate& a, const Aggregate& b) {
      return a.metric + "," + a.filter < b.metric + "," + b.filter;
    });
    std::string name = (row.depth > 0 ? "- " : "") + row.alias, version = fmt::format("{}", row.version);
    const bool mixes = row.is_group && row.num_few_shot < 0;
    for (const Aggregate& a : sorted) {
      lines.push_back({name, version, a.filter, mixes ? "" : std::to_string(row.num_few_shot), a.metric,
                       mixes                ? ""
                       : a.higher_is_better ? "↑"
                                            : "↓",
                       a.value, a.error});
      name = version = "";
    }
  }
  int value_decimals = 0, error_decimals = 0;
  for (const Cells& c : lines) {
    value_decimals = std::max(value_decimals, needed_decimals(c.value));
    if (c.error) error_decimals = std::max(error_decimals, needed_decimals(*c.error));
  }
  std::vector<std::string> out{fmt::format("|{}|Version|Filter|n-shot|Metric||Value||Stderr|", title)};
  for (const Cells& c : lines) {
    auto number = [](double value, int decimals) { return fmt::format("{:.{}f}", value, decimals); };
    out.push_back(fmt::format("|{}|{}|{}|{}|{}|{}|{}|±|{}|", c.task, c.version, c.filter, c.shots, c.metric, c.arrow,
                              number(c.value, value_decimals), c.error ? number(*c.error, error_decimals) : "N/A"));
  }
  return out;
}

}  // namespace

const ResultRow* ResultTable::find(const std::string& name) const {
  for (const ResultRow& row : rows) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

std::vector<std::string> ResultTable::markdown_rows() const {
  std::vector<std::string> all = print_block(rows, "Tasks");
  std::vector<ResultRow> groups;
  for (const ResultRow& row : rows) {
    if (row.is_group) groups.push_back(row);
  }
  if (groups.empty()) return all;
  for (std::string& line : print_block(groups, "Groups")) all.push_back(std::move(line));
  return all;
}

std::string ResultTable::to_string() const {
  base::Table table({"task", "version", "filter", "n-shot", "n", "metric", "", "value", "", "stderr"});
  for (const ResultRow& row : rows) {
    std::string name = std::string(static_cast<size_t>(row.depth) * 2, ' ') + row.alias;
    std::string version = fmt::format("{}", row.version), count = std::to_string(row.num_samples);
    for (const Aggregate& a : row.aggregates) {
      table.add_row({name, version, a.filter, row.num_few_shot < 0 ? "" : std::to_string(row.num_few_shot), count,
                     a.metric, a.higher_is_better ? "↑" : "↓", fmt::format("{:.4f}", a.value), "±",
                     a.error ? fmt::format("{:.4f}", *a.error) : "N/A"});
      name = version = count = "";
    }
  }
  return table.to_string();
}

ResultTable make_results(const std::vector<TaskRun>& runs, const TaskSet& set) {
  Builder builder{runs, set, {}, {}};
  std::set<std::string> inner;  // groups that are members of others
  for (const auto& [name, group] : set.groups) {
    for (const std::string& member : group.members) inner.insert(member);
  }
  for (const auto& [name, group] : set.groups) {
    if (inner.contains(name)) continue;
    const std::vector<const TaskRun*> tasks = builder.below(name);
    const bool is_whole = tasks.size() == set.members_of(name).size();
    const bool is_own = !tasks.empty() && tasks[0]->task->group == name;
    if (!tasks.empty() && (is_whole || is_own)) builder.add_group(group, 0);
  }
  std::vector<const TaskRun*> rest;
  for (const TaskRun& run : runs) {
    if (!builder.done.contains(run.task->name)) rest.push_back(&run);
  }
  std::sort(rest.begin(), rest.end(), [](const TaskRun* a, const TaskRun* b) { return a->task->name < b->task->name; });
  for (const TaskRun* run : rest) builder.add_task(*run, 0);
  return std::move(builder.table);
}

std::string render_chat(const tokenizer::ChatTemplate& chat, const std::vector<ChatMessage>& messages, bool continues) {
  std::vector<Value> list;
  for (const ChatMessage& message : messages) {
    auto dict = jinja::make_dict();
    dict->set(Value("role"), Value(message.role));
    dict->set(Value("content"), Value(message.content));
    list.emplace_back(std::move(dict));
  }
  tokenizer::ChatInput input{.messages = jinja::make_list(std::move(list)), .add_generation_prompt = !continues};
  std::string text = chat.render(input);
  if (!continues) return text;
  const std::string& last = messages.back().content;
  const size_t at = text.rfind(last);
  SINTER_CHECK(at != std::string::npos,
               "the chat template changes the beginning of the answer that the text ends with");
  return text.substr(0, at + last.size());
}

}  // namespace sinter::eval
