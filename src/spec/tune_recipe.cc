#include "spec/tune_recipe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <variant>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "spec/toml_text.h"

namespace sinter::spec {
namespace {

using Words = std::vector<std::string>;
using Ranks = std::map<std::string, int64_t>;
using Alphas = std::map<std::string, double>;
using Names = std::map<std::string, std::string>;

// One key: where its value stands, what it may be and what it means.
struct Field {
  const char* section;
  const char* key;
  std::variant<std::string*, bool*, int64_t*, double*, Words*, Ranks*, Alphas*, Names*> value;
  const char* meaning;
  double low = 0, high = 1e15;  // of numbers
  Words choices = {};           // of texts; empty: any
};

std::vector<Field> fields_of(TuneRecipe& r) {
  AdapterSpec& a = r.adapter;
  TuneSection& t = r.tune;
  return {
      {"adapter",
       "kind",
       &r.adapter_kind,
       "What trains: a low-rank adapter (qlora: beside a base kept in 4 bits), or all of the model",
       0,
       0,
       {"lora", "rslora", "dora", "qlora", "full"}},
      {"adapter", "from", &r.adapter_from, "An adapter folder to go on from; its own keys win over those here"},
      {"adapter", "rank", &a.rank, "Rank of the adapter's matrices", 1, 1 << 16},
      {"adapter", "alpha", &a.alpha,
       "The adapter's term is multiplied by alpha / rank (rslora: by alpha / sqrt(rank))"},
      {"adapter", "dropout", &a.dropout, "Share of what the adapter reads that is dropped", 0, 0.99},
      {"adapter", "targets", &a.targets, "Modules by the end of their names, or \"all-linear\""},
      {"adapter", "rank_pattern", &a.rank_pattern, "Other ranks: {\"module's end\" = rank}"},
      {"adapter", "alpha_pattern", &a.alpha_pattern, "Other alphas: {\"module's end\" = alpha}"},
      {"adapter", "modules_to_save", &a.modules_to_save, "Modules that train whole and are kept with the adapter"},
      {"tune", "format", &t.format,
       "Form of the rows: automatic, messages, sharegpt, alpaca, prompt_completion, preference, ..."},
      {"tune", "fields", &t.fields,
       "What the rows call their fields, where it is something else: {\"prompt\" = \"problem\", \"completion\" = ...}"},
      {"tune", "train_on", &t.train_on, "Whose tokens are learned", 0, 0, {"assistant", "last", "all"}},
      {"tune", "chat_template", &t.chat_template, "A Jinja file instead of the model's own template"},
      {"tune", "epochs", &t.epochs, "Times the data are seen, where train.steps and train.tokens are 0", 0.001, 1e6},
      {"tune", "packing", &t.packing, "Several samples in a row; each sees only itself"},
      {"tune", "neftune_alpha", &t.neftune_alpha,
       "sft: noise on the embeddings while training, up to this / sqrt(tokens of the sample x hidden); 0: none", 0,
       1e6},
      {"tune", "teacher", &t.teacher, "sft: a model folder whose probabilities are learned"},
      {"tune", "teacher_top_k", &t.teacher_top_k, "sft: how many of the teacher's likeliest tokens; the rest is one", 1,
       256},
      {"tune", "teacher_weight", &t.teacher_weight, "sft: share of the teacher in the loss; the data have the rest", 0,
       1},
      {"tune",
       "loss",
       &t.loss,
       "dpo: the objective",
       0,
       0,
       {"sigmoid", "hinge", "ipo", "cdpo", "robust", "simpo", "cpo", "orpo", "kto"}},
      {"tune", "beta", &t.beta, "dpo: how far the model may go from its reference (small: far)", 1e-9, 1e9},
      {"tune", "label_smoothing", &t.label_smoothing, "dpo: share of the pairs thought to be the wrong way round", 0,
       0.5},
      {"tune", "gamma", &t.gamma, "simpo: margin between the answers"},
      {"tune", "cpo_alpha", &t.cpo_alpha, "cpo: weight of the loss of the chosen answers"},
      {"tune", "reference", &t.reference, "A model folder; empty: the model before tuning"},
      {"tune", "prompts", &t.prompts, "grpo, ppo: prompts of a step, over all ranks", 1, 1 << 20},
      {"tune", "group", &t.group, "grpo, ppo: answers to one prompt", 1, 4096},
      {"tune", "max_new_tokens", &t.max_new_tokens, "grpo, ppo: most tokens of an answer", 1, 1 << 20},
      {"tune", "temperature", &t.temperature, "grpo, ppo: of the sampling", 1e-3, 100},
      {"tune", "iterations", &t.iterations, "grpo, ppo: steps made of one set of answers", 1, 1000},
      {"tune", "rewards", &t.rewards, "grpo, ppo: what an answer earns (docs/tuning.md); several are added up"},
      {"tune", "reward_field", &t.reward_field, "grpo, ppo: the field of a row that holds the right answer"},
      {"tune", "reward_extract", &t.reward_extract,
       "grpo, ppo: a regular expression that finds the answer in what was said"},
      {"tune", "reward_pattern", &t.reward_pattern, "grpo, ppo: regex: what has to be found"},
      {"tune", "reward_schema", &t.reward_schema, "grpo, ppo: schema: a JSON schema, or its file"},
      {"tune", "reward_command", &t.reward_command, "grpo, ppo: program: what is run"},
      {"tune", "advantages", &t.advantages, "grpo: what rewards are divided by", 0, 0, {"group", "batch", "none"}},
      {"tune", "clip_low", &t.clip_low, "grpo, ppo: the ratio counts from 1 - clip_low", 0, 1},
      {"tune", "clip_high", &t.clip_high, "grpo, ppo: to 1 + clip_high", 0, 100},
      {"tune", "kl", &t.kl, "grpo, ppo: weight of the distance to the reference"},
      {"tune",
       "rl_loss",
       &t.rl_loss,
       "grpo: how tokens are averaged",
       0,
       0,
       {"grpo", "bnpo", "dapo", "dr_grpo", "gspo", "cispo"}},
      {"tune", "skip_unfinished", &t.skip_unfinished, "grpo, ppo: answers cut at max_new_tokens are not learned from"},
      {"tune", "reward_model", &t.reward_model, "grpo, ppo: model: the folder of a sequence classifier with one label"},
      {"tune", "kl_in_loss", &t.kl_in_loss, "ppo: the distance is part of the loss, not of every token's reward"},
      {"tune", "discount", &t.discount, "ppo: what a reward counts for one token earlier", 0, 1},
      {"tune", "gae_lambda", &t.gae_lambda, "ppo: 0: advantages by the next value alone, 1: by the whole answer", 0, 1},
      {"tune", "value_weight", &t.value_weight, "ppo: weight of the values' loss", 0, 1e6},
      {"tune", "value_clip", &t.value_clip, "ppo: how far one set of answers may move a value", 0, 1e6},
  };
}

bool is_own_section(std::string_view name) { return name == "adapter" || name == "tune"; }

double number_of(const toml::node& node, const std::string& where) {
  const auto number = node.value<double>();
  SINTER_CHECK(number && (node.is_integer() || node.is_floating_point()), "{} must be a number", where);
  return *number;
}

Words words_of(const toml::node& node, const std::string& where) {
  if (node.is_string()) return {**node.as_string()};
  SINTER_CHECK(node.is_array(), "{} must be a string or a list of strings", where);
  Words words;
  for (const toml::node& item : *node.as_array()) {
    SINTER_CHECK(item.is_string(), "{} must hold strings only", where);
    words.push_back(**item.as_string());
  }
  return words;
}

void read_field(const Field& field, const toml::node& node, const std::string& where) {
  auto number = [&](const toml::node& from) {
    const double value = number_of(from, where);
    SINTER_CHECK(value >= field.low && value <= field.high, "{} is {}; expected {} to {}", where, value, field.low,
                 field.high);
    return value;
  };
  auto whole = [&](const toml::node& from) {
    const double value = number(from);
    SINTER_CHECK(value == std::floor(value), "{} is {}; expected a whole number", where, value);
    return static_cast<int64_t>(value);
  };
  auto read = [&](auto* out) {
    using T = std::remove_pointer_t<decltype(out)>;
    if constexpr (std::is_same_v<T, std::string>) {
      SINTER_CHECK(node.is_string(), "{} must be a string", where);
      *out = **node.as_string();
      SINTER_CHECK(
          field.choices.empty() || std::find(field.choices.begin(), field.choices.end(), *out) != field.choices.end(),
          "{} is '{}'; expected one of {}{}", where, *out, fmt::join(field.choices, ", "),
          base::did_you_mean(*out, field.choices));
    } else if constexpr (std::is_same_v<T, bool>) {
      SINTER_CHECK(node.is_boolean(), "{} must be true or false", where);
      *out = **node.as_boolean();
    } else if constexpr (std::is_same_v<T, int64_t>) {
      *out = whole(node);
    } else if constexpr (std::is_same_v<T, double>) {
      *out = number(node);
    } else if constexpr (std::is_same_v<T, Words>) {
      *out = words_of(node, where);
    } else if constexpr (std::is_same_v<T, Names>) {
      SINTER_CHECK(node.is_table(), "{} must be a table such as {{prompt = \"problem\"}}", where);
      out->clear();
      for (const auto& [name, value] : *node.as_table()) {
        SINTER_CHECK(value.is_string(), "{}.{} must be a string, the name of a field", where, name.str());
        (*out)[std::string(name.str())] = **value.as_string();
      }
    } else {
      SINTER_CHECK(node.is_table(), "{} must be a table such as {{q_proj = 8}}", where);
      out->clear();
      for (const auto& [name, value] : *node.as_table()) {
        const double read_number = number(value);
        (*out)[std::string(name.str())] = static_cast<typename T::mapped_type>(read_number);
      }
    }
  };
  std::visit(read, field.value);
}

std::string text_of(const Field& field) {
  auto write = [](auto* value) -> std::string {
    using T = std::remove_pointer_t<decltype(value)>;
    if constexpr (std::is_same_v<T, std::string>) {
      return toml_quoted(*value);
    } else if constexpr (std::is_same_v<T, Words>) {
      std::vector<std::string> quoted;
      for (const std::string& word : *value) quoted.push_back(toml_quoted(word));
      return fmt::format("[{}]", fmt::join(quoted, ", "));
    } else if constexpr (std::is_same_v<T, Ranks> || std::is_same_v<T, Alphas>) {
      std::vector<std::string> entries;
      for (const auto& [name, number] : *value) entries.push_back(fmt::format("{} = {}", toml_quoted(name), number));
      return fmt::format("{{{}}}", fmt::join(entries, ", "));
    } else if constexpr (std::is_same_v<T, Names>) {
      std::vector<std::string> entries;
      for (const auto& [name, own] : *value) entries.push_back(toml_quoted(name) + " = " + toml_quoted(own));
      return fmt::format("{{{}}}", fmt::join(entries, ", "));
    } else {
      return fmt::format("{}", *value);
    }
  };
  return std::visit(write, field.value);
}

void read_sections(const toml::table& root, TuneRecipe& recipe, const std::string& origin) {
  const std::vector<Field> fields = fields_of(recipe);
  for (const char* section : {"adapter", "tune"}) {
    const toml::node* node = root.get(section);
    if (!node) continue;
    SINTER_CHECK(node->is_table(), "{}: '{}' must be a section, as in [{}]", origin, section, section);
    for (const auto& [key, value] : *node->as_table()) {
      const std::string name(key.str());
      std::vector<std::string> known;
      const Field* found = nullptr;
      for (const Field& field : fields) {
        if (field.section != std::string_view(section)) continue;
        known.push_back(field.key);
        if (name == field.key) found = &field;
      }
      SINTER_CHECK(found, "{}: [{}] has no key '{}'{}", origin, section, name, base::did_you_mean(name, known));
      read_field(*found, value, fmt::format("{}: {}.{}", origin, section, name));
    }
  }
}

void apply(toml::table& root, const std::string& text) {
  const size_t equals = text.find('='), dot = text.find('.');
  const std::string section = text.substr(0, dot), key = text.substr(dot + 1, equals - dot - 1);
  const std::string value = text.substr(equals + 1);
  toml::table parsed;
  try {
    parsed = toml::parse("v = " + value);
  } catch (const toml::parse_error&) {
    parsed.insert_or_assign("v", value);
  }
  if (!root.contains(section)) root.insert(section, toml::table{});
  toml::table* table = root.get(section)->as_table();
  SINTER_CHECK(table, "override '{}': '{}' is not a section of the recipe", text, section);
  table->insert_or_assign(key, *parsed.get("v"));
}

}  // namespace

TuneRecipe parse_tune_recipe(std::string_view text, const std::string& origin,
                             const std::vector<std::string>& overrides) {
  toml::table root;
  try {
    root = toml::parse(text);
  } catch (const toml::parse_error& e) {
    base::fail("'{}' line {}: {}", origin, e.source().begin.line, e.description());
  }
  std::vector<std::string> others;
  for (const std::string& override_text : overrides) {
    const size_t equals = override_text.find('='), dot = override_text.find('.');
    const bool is_own = dot != std::string::npos && equals != std::string::npos && dot + 1 < equals &&
                        is_own_section(std::string_view(override_text).substr(0, dot));
    if (is_own) {
      apply(root, override_text);
    } else {
      others.push_back(override_text);
    }
  }
  TuneRecipe recipe;
  read_sections(root, recipe, origin);
  recipe.adapter.rslora = recipe.adapter_kind == "rslora";
  recipe.adapter.dora = recipe.adapter_kind == "dora";
  root.erase("adapter");
  root.erase("tune");
  std::ostringstream rest;
  rest << root;
  const toml::table* train = root["train"].as_table();
  auto is_given = [&](const std::string& key) {
    return (train && train->contains(key)) || std::any_of(others.begin(), others.end(), [&](const auto& o) {
             return o.starts_with("train." + key + "=");
           });
  };
  recipe.counts_epochs = !is_given("steps") && !is_given("tokens");
  if (recipe.counts_epochs) others.push_back("train.steps=1");  // the data say how many
  recipe.base = parse_recipe(rest.str(), origin, others);
  if (recipe.counts_epochs) recipe.base.train.steps = 0;
  SINTER_CHECK(!recipe.base.model.path.empty(), "{}: tuning needs model.path, the folder of the model to be tuned",
               origin);
  SINTER_CHECK(!recipe.base.data.sources.empty(), "{}: tuning needs data.sources, files of rows to learn from", origin);
  return recipe;
}

TuneRecipe load_tune_recipe(const std::string& path, const std::vector<std::string>& overrides) {
  return parse_tune_recipe(base::read_file(path), path, overrides);
}

std::string tune_sections_to_toml(const TuneRecipe& recipe) {
  TuneRecipe copy = recipe;
  std::string text, section;
  for (const Field& field : fields_of(copy)) {
    if (section != field.section) text += fmt::format("\n[{}]\n", section = field.section);
    text += fmt::format("{} = {}\n", field.key, text_of(field));
  }
  return text;
}

std::vector<RecipeKey> tune_recipe_keys() {
  TuneRecipe defaults;
  std::vector<RecipeKey> keys;
  for (const Field& field : fields_of(defaults)) {
    constexpr const char* kTypes[] = {"text",          "true or false", "whole number", "number",
                                      "list of texts", "table",         "table",        "table"};
    std::string type = kTypes[field.value.index()], range;
    if (!field.choices.empty()) type = fmt::format("one of {}", fmt::join(field.choices, ", "));
    if (field.value.index() == 2 || field.value.index() == 3)
      range = field.high >= 1e15 ? fmt::format("from {}", field.low) : fmt::format("{} to {}", field.low, field.high);
    keys.push_back({field.section, field.key, type, text_of(field), range, field.meaning});
  }
  return keys;
}

}  // namespace sinter::spec
