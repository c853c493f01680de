#include "tune/rewards/reward.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "base/threads.h"
#include "engine/grammar/json_schema.h"
#include "engine/grammar/matcher.h"
#include "eval/checkers/math.h"
#include "eval/sandbox/sandbox.h"
#include "eval/tasks/python_regex.h"
#include "tune/objectives/policy.h"
#include "tune/rewards/outside_program.h"

namespace sinter::tune {
namespace {

using Json = nlohmann::json;
using eval::PythonRegex;
using eval::RegexMatch;

std::string trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

// The last match of a pattern: its group 1, or all of it where there is no group.
class Extractor {
 public:
  explicit Extractor(const std::string& pattern) {
    if (!pattern.empty()) regex_.emplace(pattern);
  }
  std::optional<std::string> operator()(std::string_view text) const {
    if (!regex_) return std::string(text);
    const std::vector<RegexMatch> matches = regex_->find_all(text);
    if (matches.empty()) return std::nullopt;
    const RegexMatch& last = matches.back();
    return last.groups.empty() ? std::string(text.substr(last.begin, last.end - last.begin)) : last.groups[0];
  }

 private:
  std::optional<PythonRegex> regex_;
};

// The last number of a text, commas between its digits passed over.
std::optional<double> last_number(const std::string& text) {
  static const PythonRegex kNumber(R"(-?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)");
  const std::vector<RegexMatch> matches = kNumber.find_all(text);
  if (matches.empty()) return std::nullopt;
  std::string digits = text.substr(matches.back().begin, matches.back().end - matches.back().begin);
  std::erase(digits, ',');
  return std::strtod(digits.c_str(), nullptr);
}

bool equal_numbers(const std::string& a, const std::string& b) {
  const std::optional<double> x = last_number(a), y = last_number(b);
  return x && y && std::abs(*x - *y) <= 1e-6 * std::max(1.0, std::abs(*y));
}

bool equal_math(const std::string& answer, const std::string& wanted) {
  std::string found = answer;
  if (const auto boxed = eval::last_boxed(answer)) {
    if (const auto inside = eval::unbox(*boxed)) found = *inside;
  }
  if (eval::hendrycks_equal(found, wanted)) return true;
  return eval::minerva_equal(eval::minerva_normalize(found), eval::minerva_normalize(wanted));
}

// The row's field as a text.
std::string field_of(const RewardInput& input, const std::string& field) {
  const Json row = Json::parse(input.row, nullptr, false);
  SINTER_CHECK(row.is_object() && row.contains(field),
               "the reward needs the field '{}' and the row has none (tune.reward_field names it): {}", field,
               std::string(input.row.substr(0, 120)));
  return row[field].is_string() ? row[field].get<std::string>() : row[field].dump();
}

class AnswerReward final : public Reward {
 public:
  explicit AnswerReward(const RewardOptions& options)
      : options_(options), extract_(options.extract), extract_field_(options.extract_field) {}

  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards;
    for (const RewardInput& input : inputs) {
      const std::string field = field_of(input, options_.field);
      const std::optional<std::string> wanted = extract_field_(field), found = extract_(input.completion);
      SINTER_CHECK(wanted.has_value(), "extract_field finds nothing in the row's '{}': '{}'", options_.field,
                   field.substr(0, 120));
      rewards.push_back(found && is_right(*found, *wanted) ? 1 : 0);
    }
    return rewards;
  }

 private:
  bool is_right(const std::string& found, const std::string& wanted) const {
    if (options_.kind == RewardKind::numeric) return equal_numbers(found, wanted);
    if (options_.kind == RewardKind::math) return equal_math(trimmed(found), trimmed(wanted));
    return trimmed(found) == trimmed(wanted);
  }

  RewardOptions options_;
  Extractor extract_, extract_field_;
};

class RegexReward final : public Reward {
 public:
  explicit RegexReward(const std::string& pattern) : regex_(pattern) {}
  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards;
    for (const RewardInput& input : inputs) rewards.push_back(regex_.search(input.completion) ? 1 : 0);
    return rewards;
  }

 private:
  PythonRegex regex_;
};

// The grammar has an object's properties in the schema's order; an answer may have them in any.
nlohmann::ordered_json in_order(const nlohmann::ordered_json& value, const nlohmann::ordered_json& schema) {
  const bool has_schema = schema.is_object();
  if (value.is_array()) {
    nlohmann::ordered_json out = nlohmann::ordered_json::array();
    const nlohmann::ordered_json items = has_schema && schema.contains("items") ? schema["items"] : nullptr;
    for (const auto& item : value) out.push_back(in_order(item, items));
    return out;
  }
  if (!value.is_object() || !has_schema || !schema.contains("properties")) return value;
  nlohmann::ordered_json out = nlohmann::ordered_json::object();
  for (const auto& [key, inner] : schema["properties"].items()) {
    if (value.contains(key)) out[key] = in_order(value[key], inner);
  }
  for (const auto& [key, item] : value.items()) {
    if (!out.contains(key)) out[key] = item;
  }
  return out;
}

class SchemaReward final : public Reward {
 public:
  SchemaReward(const std::string& schema, const std::string& extract)
      : extract_(extract), schema_(nlohmann::ordered_json::parse(schema, nullptr, false)) {
    SINTER_CHECK(!schema_.is_discarded(), "the reward's schema is not JSON: '{}'", schema.substr(0, 80));
    vocabulary_ = engine::grammar::make_vocabulary(std::vector<std::string>(1, "{"), {});
    limits_.max_stack = 256;
    program_ = engine::grammar::compile_schema(schema, limits_);
    grammar_ = std::make_unique<engine::grammar::CompiledGrammar>(program_, vocabulary_);
  }

  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards;
    for (const RewardInput& input : inputs) rewards.push_back(is_accepted(input.completion) ? 1 : 0);
    return rewards;
  }

 private:
  bool is_accepted(std::string_view completion) {
    const std::optional<std::string> text = extract_(completion);
    if (!text || text->size() > (size_t{1} << 20) || nests_deep(*text)) return false;
    const auto value = nlohmann::ordered_json::parse(trimmed(*text), nullptr, false);
    if (value.is_discarded()) return false;
    if (grammar_->is_worn()) grammar_ = std::make_unique<engine::grammar::CompiledGrammar>(program_, vocabulary_);
    try {
      return grammar_->accepts(grammar_->advance(grammar_->start(), in_order(value, schema_).dump()));
    } catch (const base::Error&) {
      return false;  // past the limits on states: no text that a schema means
    }
  }
  static bool nests_deep(const std::string& text) {
    int depth = 0;
    for (char c : text) {
      depth += (c == '[' || c == '{') - (c == ']' || c == '}');
      if (depth > 200) return true;
    }
    return false;
  }

  Extractor extract_;
  nlohmann::ordered_json schema_;
  engine::grammar::GrammarLimits limits_;
  engine::grammar::TokenBytes vocabulary_;
  engine::grammar::Program program_;
  std::unique_ptr<engine::grammar::CompiledGrammar> grammar_;
};

class LengthReward final : public Reward {
 public:
  LengthReward(int64_t longest, int64_t cache) : longest_(longest), cache_(cache) {}
  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards;
    for (const RewardInput& input : inputs) rewards.push_back(overlong_penalty(input.tokens, longest_, cache_));
    return rewards;
  }

 private:
  int64_t longest_, cache_;
};

class CodeReward final : public Reward {
 public:
  explicit CodeReward(const RewardOptions& options) : options_(options), extract_(options.extract) {
    SINTER_CHECK(eval::sandbox_problem().empty(),
                 "a reward of kind code runs programs, and they cannot be run here: {}", eval::sandbox_problem());
  }
  std::vector<double> score(std::span<const RewardInput> inputs) override {
    std::vector<double> rewards(inputs.size(), 0.0);
    std::vector<std::string> tests;
    for (const RewardInput& input : inputs) tests.push_back(field_of(input, options_.field));
    base::parallel_for(static_cast<int64_t>(inputs.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto at = static_cast<size_t>(i);
        const std::optional<std::string> code =
            options_.extract.empty() ? fenced(inputs[at].completion) : extract_(inputs[at].completion);
        if (!code) continue;
        eval::SandboxLimits limits;
        limits.seconds = options_.seconds;
        rewards[at] = eval::run_python(*code + "\n\n" + tests[at] + "\n", limits).passed ? 1 : 0;
      }
    });
    return rewards;
  }

 private:
  // The last block between ``` and ```, else all of it.
  static std::string fenced(std::string_view text) {
    static const PythonRegex kBlock("```(?:python|py)?[ \\t]*\\n(.*?)```", {.dot_all = true});
    const std::vector<RegexMatch> blocks = kBlock.find_all(text);
    return blocks.empty() ? std::string(text) : blocks.back().groups[0];
  }

  RewardOptions options_;
  Extractor extract_;
};

}  // namespace

const std::vector<std::string>& reward_names() {
  static const std::vector<std::string> kNames = {"exact",  "numeric", "math",    "regex", "schema",
                                                  "length", "code",    "program", "model"};
  return kNames;
}

RewardKind parse_reward_kind(std::string_view name) {
  const auto& names = reward_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    base::fail("there is no reward '{}'{}; rewards are {}", name, base::did_you_mean(name, names),
               fmt::join(names, ", "));
  return static_cast<RewardKind>(found - names.begin());
}

std::unique_ptr<Reward> make_reward(const RewardOptions& options) {
  switch (options.kind) {
    case RewardKind::exact:
    case RewardKind::numeric:
    case RewardKind::math:
      return std::make_unique<AnswerReward>(options);
    case RewardKind::regex:
      SINTER_CHECK(!options.pattern.empty(), "the reward regex needs tune.reward_pattern, a regular expression");
      return std::make_unique<RegexReward>(options.pattern);
    case RewardKind::schema: {
      SINTER_CHECK(!options.schema.empty(),
                   "the reward schema needs tune.reward_schema: JSON, or a file that holds it");
      const bool is_text = options.schema.find('{') != std::string::npos;
      return std::make_unique<SchemaReward>(is_text ? options.schema : base::read_file(options.schema),
                                            options.extract);
    }
    case RewardKind::length:
      SINTER_CHECK(options.cache > 0 && options.longest >= options.cache,
                   "a reward of kind length needs `longest` and `cache` in tokens, cache from 1 to longest; found {} "
                   "and {}",
                   options.longest, options.cache);
      return std::make_unique<LengthReward>(options.longest, options.cache);
    case RewardKind::code:
      return std::make_unique<CodeReward>(options);
    case RewardKind::model:
      base::fail("[reward] a model is no rule: make_model_reward makes its reward");
    case RewardKind::program:
      break;
  }
  return std::make_unique<OutsideProgram>(options.command, options.seconds);
}

}  // namespace sinter::tune
