#include "eval/metrics/filters.h"

#include <algorithm>
#include <map>
#include <memory>

#include "eval/tasks/python_regex.h"
#include "tokenizer/jinja/value.h"
#include "tokenizer/unicode.h"

namespace sinter::eval {
namespace {

using tokenizer::jinja::strip;

// The chosen match of re.findall: its first group that is not empty, or all of it where there are none.
std::string choose_match(const PythonRegex& regex, const FilterStep& step, const std::string& text) {
  const std::vector<RegexMatch> matches = regex.find_all(text);
  const auto count = static_cast<int64_t>(matches.size());
  const int64_t index = step.group < 0 ? count + step.group : step.group;
  if (index < 0 || index >= count) return step.fallback;
  const RegexMatch& match = matches[static_cast<size_t>(index)];
  std::string found;
  if (match.groups.empty()) {
    found = text.substr(match.begin, match.end - match.begin);
  } else if (match.groups.size() == 1) {
    found = match.groups[0];
  } else {
    auto group = std::find_if(match.groups.begin(), match.groups.end(), [](const auto& g) { return !g.empty(); });
    found = group == match.groups.end() ? step.fallback : *group;
  }
  return std::string(strip(found, nullptr, true, true));
}

// The most frequent answer; of equally frequent ones that which came first.
std::string majority(const std::vector<std::string>& answers) {
  std::map<std::string, int> counts;
  for (const std::string& answer : answers) ++counts[answer];
  const std::string* best = nullptr;
  for (const std::string& answer : answers) {
    if (!best || counts[answer] > counts[*best]) best = &answer;
  }
  return best ? *best : "";
}

}  // namespace

std::vector<std::string> apply_filter(const AnswerFilter& filter, std::vector<std::string> answers) {
  using Kind = FilterStep::Kind;
  for (const FilterStep& step : filter.steps) {
    if (step.kind == Kind::first) {
      if (answers.size() > 1) answers.resize(1);
      continue;
    }
    if (step.kind == Kind::majority) {
      answers = {majority(answers)};
      continue;
    }
    std::unique_ptr<PythonRegex> regex;
    if (step.kind == Kind::regex) regex = std::make_unique<PythonRegex>(step.pattern);
    if (step.kind == Kind::choice_letter) {
      regex = std::make_unique<PythonRegex>(step.pattern.empty() ? R"((\([A-Z]\)))" : step.pattern);
    }
    for (std::string& answer : answers) {
      if (regex) {
        answer = choose_match(*regex, step, answer);
      } else if (step.kind == Kind::lower) {
        answer = tokenizer::lowercase_unicode(answer);
      } else {
        answer = std::string(strip(answer, nullptr, true, step.kind == Kind::strip));
      }
    }
  }
  return answers;
}

std::string cut_at_stops(std::string text, const std::vector<std::string>& stops) {
  for (const std::string& stop : stops) {
    if (stop.empty()) continue;
    if (const size_t at = text.find(stop); at != std::string::npos) text.resize(at);
  }
  return text;
}

}  // namespace sinter::eval
