// Task files: TOML to Task.
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "eval/tasks/python_regex.h"
#include "eval/tasks/task.h"

namespace sinter::eval {
namespace {

namespace jinja = tokenizer::jinja;
using base::fail;

// A table of the file whose keys are asked for by name and type; what nobody asked for is an error.
class Keys {
 public:
  Keys(const toml::table& table, std::string origin, std::string section)
      : table_(table), origin_(std::move(origin)), section_(std::move(section)) {}

  const toml::node* find(const std::string& key) {
    known_.push_back(key);
    return table_.get(key);
  }
  std::string path(const std::string& key) const { return section_.empty() ? key : section_ + "." + key; }
  template <class... Args>
  [[noreturn]] void fail_at(const std::string& key, const std::string& found) const {
    fail("'{}': {} is {}", origin_, path(key), found);
  }
  template <class T>
  T get(const std::string& key, T standard, const char* wanted) {
    const toml::node* node = find(key);
    if (!node) return standard;
    if (auto value = node->value_exact<T>()) return *value;
    if constexpr (std::is_same_v<T, double>) {
      if (auto value = node->value_exact<int64_t>()) return static_cast<double>(*value);
    }
    fail_at(key, fmt::format("of another type; expected {}", wanted));
  }
  std::string text(const std::string& key, std::string standard = "") {
    return get<std::string>(key, std::move(standard), "text in quotes");
  }
  int64_t integer(const std::string& key, int64_t standard) { return get<int64_t>(key, standard, "a whole number"); }
  double number(const std::string& key, double standard) { return get<double>(key, standard, "a number"); }
  bool flag(const std::string& key, bool standard) { return get<bool>(key, standard, "true or false"); }
  std::vector<std::string> texts(const std::string& key) {
    std::vector<std::string> out;
    const toml::node* node = find(key);
    if (!node) return out;
    if (auto one = node->value_exact<std::string>()) return {*one};
    const toml::array* array = node->as_array();
    if (!array) fail_at(key, "of another type; expected a list of texts");
    for (const toml::node& item : *array) {
      auto value = item.value_exact<std::string>();
      if (!value) fail_at(key, "a list with something that is no text in quotes");
      out.push_back(*value);
    }
    return out;
  }
  const toml::table* table(const std::string& key) {
    const toml::node* node = find(key);
    if (!node) return nullptr;
    if (!node->is_table()) fail_at(key, "no table");
    return node->as_table();
  }
  // Throws for keys that nobody asked for.
  void finish() const {
    for (const auto& [key, unused] : table_) {
      const std::string name(key.str());
      if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
        fail("'{}': unknown key '{}'{}", origin_, path(name), base::did_you_mean(name, known_));
      }
    }
  }
  const std::string& origin() const { return origin_; }

 private:
  const toml::table& table_;
  std::string origin_, section_;
  std::vector<std::string> known_;
};

Value to_value(const toml::node& node) {
  if (const toml::array* array = node.as_array()) {
    std::vector<Value> items;
    for (const toml::node& item : *array) items.push_back(to_value(item));
    return jinja::make_list(std::move(items));
  }
  if (const toml::table* table = node.as_table()) {
    auto dict = jinja::make_dict();
    for (const auto& [key, item] : *table) dict->set(Value(std::string(key.str())), to_value(item));
    return dict;
  }
  if (auto v = node.value_exact<std::string>()) return Value(*v);
  if (auto v = node.value_exact<int64_t>()) return Value(*v);
  if (auto v = node.value_exact<double>()) return Value(*v);
  if (auto v = node.value_exact<bool>()) return Value(*v);
  return Value::none();
}

// Text is a template, everything else a constant.
Template read_template(Keys& keys, const std::string& key) {
  const toml::node* node = keys.find(key);
  if (!node) return {};
  if (auto text = node->value_exact<std::string>()) return {*text, keys.origin() + " " + keys.path(key)};
  return Template(to_value(*node));
}

TaskKind parse_kind(Keys& keys) {
  static const std::vector<std::pair<std::string, TaskKind>> kKinds{{"multiple_choice", TaskKind::multiple_choice},
                                                                    {"log_likelihood", TaskKind::log_likelihood},
                                                                    {"rolling", TaskKind::rolling},
                                                                    {"generate", TaskKind::generate}};
  const std::string name = keys.text("kind");
  std::vector<std::string> names;
  for (const auto& [known, kind] : kKinds) {
    if (known == name) return kind;
    names.push_back(known);
  }
  fail("'{}': kind is '{}'; expected multiple_choice, log_likelihood, rolling or generate{}", keys.origin(), name,
       base::did_you_mean(name, names));
}

FilterStep read_step(const toml::node& node, const std::string& origin) {
  using Kind = FilterStep::Kind;
  static const std::map<std::string, Kind> kNames{
      {"first", Kind::first}, {"majority", Kind::majority}, {"strip_left", Kind::strip_left},
      {"strip", Kind::strip}, {"lower", Kind::lower},       {"choice_letter", Kind::choice_letter}};
  FilterStep step;
  if (auto name = node.value_exact<std::string>()) {
    auto found = kNames.find(*name);
    std::vector<std::string> names;
    for (const auto& [known, unused] : kNames) names.push_back(known);
    SINTER_CHECK(found != kNames.end(), "'{}': filters have no step '{}'{}", origin, *name,
                 base::did_you_mean(*name, names));
    step.kind = found->second;
    return step;
  }
  SINTER_CHECK(node.is_table(), "'{}': a filter's step is neither a name nor a table with `regex`", origin);
  Keys keys(*node.as_table(), origin, "filters.steps");
  step.kind = Kind::regex;
  step.pattern = keys.text("regex");
  step.group = keys.integer("group", 0);
  step.fallback = keys.text("fallback", step.fallback);
  if (keys.flag("choice_letter", false)) step.kind = Kind::choice_letter;
  keys.finish();
  return step;
}

std::vector<AnswerFilter> read_filters(Keys& keys) {
  std::vector<AnswerFilter> filters;
  if (const toml::node* node = keys.find("filters")) {
    SINTER_CHECK(node->is_array(), "'{}': filters is not a list", keys.origin());
    for (const toml::node& item : *node->as_array()) {
      SINTER_CHECK(item.is_table(), "'{}': an item of filters is no table with `name` and `steps`", keys.origin());
      Keys own(*item.as_table(), keys.origin(), "filters");
      AnswerFilter filter;
      filter.name = own.text("name", "none");
      if (const toml::node* steps = own.find("steps"); steps && steps->is_array()) {
        for (const toml::node& step : *steps->as_array()) filter.steps.push_back(read_step(step, keys.origin()));
      }
      own.finish();
      filters.push_back(std::move(filter));
    }
  }
  if (filters.empty()) filters.emplace_back();
  return filters;
}

const std::set<std::string> kLowerIsBetter{"perplexity", "word_perplexity", "byte_perplexity", "bits_per_byte",
                                           "brier_score"};

std::vector<MetricSpec> read_metrics(Keys& keys) {
  std::vector<MetricSpec> metrics;
  const toml::node* node = keys.find("metrics");
  SINTER_CHECK(node && node->is_array() && !node->as_array()->empty(),
               "'{}': metrics is missing; expected a list such as [\"acc\"]", keys.origin());
  for (const toml::node& item : *node->as_array()) {
    MetricSpec metric;
    if (auto name = item.value_exact<std::string>()) {
      metric.name = *name;
    } else {
      SINTER_CHECK(item.is_table(), "'{}': an item of metrics is neither a name nor a table", keys.origin());
      Keys own(*item.as_table(), keys.origin(), "metrics");
      metric.name = own.text("name");
      metric.ignores_case = own.flag("ignore_case", false);
      metric.ignores_punctuation = own.flag("ignore_punctuation", false);
      metric.ignores_numbers = own.flag("ignore_numbers", false);
      metric.ignored = own.texts("ignore");
      if (const toml::node* k = own.find("k"); k && k->is_array()) {
        for (const toml::node& n : *k->as_array()) metric.k.push_back(n.value_or(int64_t{1}));
      }
      own.finish();
    }
    metric.higher_is_better = !kLowerIsBetter.contains(metric.name);
    metrics.push_back(std::move(metric));
  }
  return metrics;
}

void read_few_shot(Keys& keys, FewShotSpec& few_shot) {
  const toml::table* table = keys.table("few_shot");
  if (!table) return;
  Keys own(*table, keys.origin(), "few_shot");
  few_shot.count = own.integer("count", 0);
  few_shot.is_fixed = own.flag("fixed", false);
  few_shot.split = own.text("split");
  few_shot.seed = static_cast<uint64_t>(own.integer("seed", 1234));
  const std::string sampler = own.text("sampler", "random");
  SINTER_CHECK(sampler == "random" || sampler == "first", "'{}': few_shot.sampler is '{}'; expected random or first",
               keys.origin(), sampler);
  few_shot.takes_first = sampler == "first";
  if (const toml::node* examples = own.find("examples"); examples && examples->is_array()) {
    for (const toml::node& item : *examples->as_array()) few_shot.examples.push_back(to_value(item));
  }
  own.finish();
}

void read_generation(Keys& keys, GenerationSpec& generation) {
  const toml::table* table = keys.table("generation");
  if (!table) return;
  Keys own(*table, keys.origin(), "generation");
  generation.until = own.texts("until");
  generation.max_tokens = own.integer("max_tokens", generation.max_tokens);
  generation.temperature = own.number("temperature", 0);
  generation.top_p = own.number("top_p", 1);
  generation.repeats = own.integer("repeats", 1);
  own.finish();
}

void read_data(Keys& keys, Task& task) {
  const toml::table* table = keys.table("data");
  SINTER_CHECK(table, "'{}': [data] is missing; expected a file per split, such as test = \"test.jsonl\"",
               keys.origin());
  Keys own(*table, keys.origin(), "data");
  for (const char* split : {"train", "validation", "test", "dev"}) {
    const std::vector<std::string> files = own.texts(split);
    if (files.empty()) continue;
    task.data[split] = files[0];
    task.others[split].assign(files.begin() + 1, files.end());
  }
  task.obtain = own.text("obtain");
  task.columns = own.texts("columns");
  task.split = own.text("evaluate", task.data.contains("test") ? "test" : "validation");
  own.finish();
  SINTER_CHECK(task.data.contains(task.split), "'{}': [data] has no '{}', the split that is evaluated", keys.origin(),
               task.split);
}

void check_parts(const Task& task) {
  const bool has_choices = task.kind == TaskKind::multiple_choice;
  SINTER_CHECK(!has_choices || task.choices.is_set() || task.contexts.is_set(),
               "'{}': a multiple_choice task needs `choices` (or `contexts` and `continuation`)", task.origin);
  SINTER_CHECK(task.contexts.is_set() == task.continuation.is_set(),
               "'{}': `contexts` and `continuation` belong together; one of them is missing", task.origin);
  SINTER_CHECK(task.target.is_set() || !task.checker.empty(), "'{}': `target` is missing", task.origin);
  static const std::set<std::string> kCheckers{"", "code", "ifeval", "hendrycks_math", "minerva_math", "bfcl"};
  SINTER_CHECK(kCheckers.contains(task.checker),
               "'{}': checker is '{}'; expected code, ifeval, hendrycks_math, minerva_math or bfcl", task.origin,
               task.checker);
}

Task read_task(Keys& keys, std::string_view source) {
  Task task;
  task.origin = keys.origin();
  task.source = source;
  task.name = keys.text("task");
  SINTER_CHECK(!task.name.empty(), "'{}': task, the name, is missing", keys.origin());
  task.alias = keys.text("alias", task.name);
  task.group = keys.text("group");
  task.version = keys.number("version", 1);
  task.kind = parse_kind(keys);
  task.description = read_template(keys, "description");
  task.context = read_template(keys, "context");
  task.choices = read_template(keys, "choices");
  task.target = read_template(keys, "target");
  task.contexts = read_template(keys, "contexts");
  task.continuation = read_template(keys, "continuation");
  task.labels = read_template(keys, "labels");
  task.prefix = read_template(keys, "answer_prefix");
  task.keep = read_template(keys, "keep");
  task.program = read_template(keys, "program");
  task.target_delimiter = keys.text("target_delimiter", " ");
  task.example_delimiter = keys.text("example_delimiter", "\n\n");
  task.checker = keys.text("checker");
  task.baseline = keys.number("baseline", 0);
  read_data(keys, task);
  if (const toml::table* fields = keys.table("fields")) {
    Keys own(*fields, keys.origin(), "fields");
    std::vector<std::pair<toml::source_position, std::string>> names;  // as they stand in the file
    for (const auto& [key, node] : *fields) names.emplace_back(node.source().begin, std::string(key.str()));
    std::sort(names.begin(), names.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [unused, name] : names) task.fields.emplace_back(name, read_template(own, name));
  }
  read_few_shot(keys, task.few_shot);
  read_generation(keys, task.generation);
  task.filters = read_filters(keys);
  task.metrics = read_metrics(keys);
  check_parts(task);
  return task;
}

toml::table parse(std::string_view text, const std::string& origin) {
  try {
    return toml::parse(text, origin);
  } catch (const toml::parse_error& e) {
    fail("'{}', line {}: {}", origin, e.source().begin.line, e.description());
  }
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// One variant: "@key@" of the source becomes a text.
using Replacements = std::vector<std::pair<std::string, std::string>>;

TaskGroup& group_of(TaskSet& set, const std::string& name, const std::string& alias, double version) {
  auto [found, is_new] = set.groups.try_emplace(name, TaskGroup{name, alias, {}, false, version});
  return found->second;
}

void add_member(TaskGroup& group, const std::string& member) {
  if (std::find(group.members.begin(), group.members.end(), member) == group.members.end())
    group.members.push_back(member);
}

void add_task(TaskSet& set, const std::string& text, const std::string& origin) {
  const toml::table table = parse(text, origin);
  Keys keys(table, origin, "");
  keys.find("variants");
  keys.find("group_version");
  Task task = read_task(keys, text);
  keys.finish();
  SINTER_CHECK(!set.tasks.contains(task.name), "'{}': there is another task '{}' ('{}')", origin, task.name,
               set.tasks.contains(task.name) ? set.tasks.at(task.name).origin : "");
  set.order.push_back(task.name);
  set.tasks.emplace(task.name, std::move(task));
}

// [variants]: one task per value of a list (or of lists under group names, or of tables of further texts).
void add_variants(TaskSet& set, const toml::table& variants, std::string_view text, const std::string& origin,
                  const std::string& group, double version) {
  Keys keys(variants, origin, "variants");
  const std::string name = keys.text("name", "variant");
  auto add = [&](const std::string& value, Replacements more, const std::string& below) {
    std::string own(text);
    more.emplace_back(name, value);
    more.emplace_back(name + "_words", replace_all(value, "_", " "));
    for (const auto& [key, replacement] : more) own = replace_all(own, "@" + key + "@", replacement);
    add_task(set, own, origin);
    if (!below.empty()) add_member(set.groups.at(below), set.order.back());
  };
  if (!group.empty()) group_of(set, group, group, version);
  if (const toml::table* groups = keys.table("groups")) {
    for (const auto& [key, list] : *groups) {
      const std::string below = group + "_" + std::string(key.str());
      group_of(set, below, replace_all(std::string(key.str()), "_", " "), version);
      add_member(set.groups.at(group), below);
      SINTER_CHECK(list.is_array(), "'{}': variants.groups.{} is not a list", origin, std::string(key.str()));
      for (const toml::node& item : *list.as_array()) add(item.value_or(std::string()), {}, below);
    }
  }
  for (const std::string& value : keys.texts("values")) add(value, {}, group);
  if (const toml::table* each = keys.table("each")) {
    for (const auto& [key, node] : *each) {
      SINTER_CHECK(node.is_table(), "'{}': variants.each.{} is no table of texts", origin, std::string(key.str()));
      Replacements more;
      for (const auto& [inner, value] : *node.as_table()) {
        // Inside quotes of the file: what TOML would have to escape is escaped again.
        std::string own = value.value_or(std::string());
        more.emplace_back(std::string(inner.str()), replace_all(replace_all(own, "\\", "\\\\"), "\"", "\\\""));
      }
      add(std::string(key.str()), more, group);
    }
  }
  keys.finish();
}

}  // namespace

void read_task_file(std::string_view text, const std::string& origin, TaskSet& set) {
  // What a variant puts in the place of "@key@" may be a number: any will do while the variants are read.
  static const PythonRegex kPlace(R"(@[a-z_]+@)");
  const bool has_variants = text.find("\n[variants") != std::string_view::npos;
  const toml::table table = parse(has_variants ? kPlace.replace(text, "0") : std::string(text), origin);
  if (const toml::array* members = table["tasks"].as_array()) {  // a group of other files' tasks
    Keys keys(table, origin, "");
    TaskGroup group;
    group.name = keys.text("group");
    group.alias = keys.text("alias", group.name);
    group.version = keys.number("version", 1);
    keys.find("tasks");
    group.members = keys.texts("tasks");
    group.is_centered = keys.flag("centered", false);
    keys.finish();
    SINTER_CHECK(!group.name.empty() && !members->empty(), "'{}': a file with `tasks` needs `group`, its name", origin);
    set.groups[group.name] = std::move(group);
    return;
  }
  const std::string group = table["group"].value_or(std::string());
  const double version = table["group_version"].value_or(1.0);
  if (const toml::table* variants = table["variants"].as_table()) {
    add_variants(set, *variants, text, origin, group, version);
    return;
  }
  add_task(set, std::string(text), origin);
  if (!group.empty()) add_member(group_of(set, group, group, version), set.order.back());
}

std::vector<std::string> TaskSet::members_of(const std::string& name) const {
  if (tasks.contains(name)) return {name};
  auto found = groups.find(name);
  if (found == groups.end()) {
    std::vector<std::string> names;
    for (const auto& [known, unused] : tasks) names.push_back(known);
    for (const auto& [known, unused] : groups) names.push_back(known);
    fail("there is no task '{}'{}; `sinter eval --list` prints all, and a path that ends in .toml is a task file", name,
         base::did_you_mean(name, names));
  }
  std::vector<std::string> all;
  for (const std::string& member : found->second.members) {
    for (std::string& below : members_of(member)) all.push_back(std::move(below));
  }
  return all;
}

DocumentSet load_split(const Task& task, const std::string& split, const std::string& folder) {
  auto found = task.data.find(split);
  SINTER_CHECK(found != task.data.end(), "'{}': there is no file for the split '{}'", task.origin, split);
  std::vector<std::string> names{found->second};
  if (const auto more = task.others.find(split); more != task.others.end())
    names.insert(names.end(), more->second.begin(), more->second.end());
  const std::string path = find_documents(names, folder);
  if (path.empty()) {
    const std::filesystem::path first(names[0]);
    fail("task {}: there is no file '{}', nor one of the same name with another ending{}", task.name,
         (first.is_relative() && !folder.empty() ? std::filesystem::path(folder) / first : first).string(),
         task.obtain.empty() ? "" : "; to obtain it: " + task.obtain);
  }
  DocumentSet set = read_documents(path, task.columns);
  if (task.fields.empty() && !task.keep.is_set()) return set;
  DocumentSet kept;
  kept.path = set.path;
  for (size_t i = 0; i < set.size(); ++i) {
    try {
      Value document = clone_value(set.documents[i]);
      for (const auto& [name, field] : task.fields) document.dict()->set(Value(name), field.evaluate(document));
      if (task.keep.is_set() && !jinja::is_true(task.keep.evaluate(document))) continue;
      kept.documents.push_back(std::move(document));
      kept.lines.push_back(set.lines[i]);
    } catch (const base::Error& e) {
      fail("{}: {}", set.place(i), e.what());
    }
  }
  return kept;
}

}  // namespace sinter::eval
