#include "train/resume.h"

#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "spec/hf_config.h"

namespace sinter::train {
namespace {

void check_model(const std::string& from, const spec::ModelSpec& before, const spec::ModelSpec& now) {
  // Of these a model with the same tensors may have others: they act in training only, or follow from the data.
  static const std::set<std::string> kFree{"attention_dropout",
                                           "attn_pdrop",
                                           "embd_pdrop",
                                           "resid_pdrop",
                                           "initializer_range",
                                           "router_aux_loss_coef",
                                           "max_position_embeddings",
                                           "n_positions",
                                           "n_ctx",
                                           "bos_token_id",
                                           "eos_token_id",
                                           "pad_token_id"};
  static const std::set<std::string> kPositions{"max_position_embeddings", "n_positions", "n_ctx"};
  const nlohmann::json old_keys = spec::make_hf_config(before, ""), new_keys = spec::make_hf_config(now, "");
  auto value_of = [](const nlohmann::json& keys, const std::string& key) {
    return keys.contains(key) ? keys[key].dump() : "not set";
  };
  nlohmann::json all = old_keys;
  all.update(new_keys);
  for (const auto& [key, value] : all.items()) {
    const std::string was = value_of(old_keys, key), is = value_of(new_keys, key);
    SINTER_CHECK(
        was == is || (kFree.count(key) && !(now.learned_positions && kPositions.count(key))),
        "checkpoint '{}' is of another model: {} was {} and is {} now; give it the recipe it was made with, or the "
        "new model another checkpoint.dir",
        from, key, was, is);
  }
}

// Adam's state is AdamW's; all others have their own.
void check_optimizer(const std::string& from, const std::map<std::string, std::string>& before,
                     const std::map<std::string, std::string>& now) {
  auto kind_of = [](const std::map<std::string, std::string>& keys) {
    const auto kind = keys.find("optimizer.kind");
    return kind == keys.end() ? "" : kind->second;
  };
  auto family = [](const std::string& kind) { return kind == "\"adam\"" ? "\"adamw\"" : kind; };
  const std::string was = kind_of(before), is = kind_of(now);
  SINTER_CHECK(
      was.empty() || family(was) == family(is),
      "checkpoint '{}' holds the state of optimizer.kind = {}, and {} has another; go on with that, or begin a "
      "new run (another checkpoint.dir) from its weights with model.path = \"{}\"",
      from, was, is, from);
}

}  // namespace

std::map<std::string, std::string> recipe_keys(const std::string& toml) {
  std::map<std::string, std::string> keys;
  std::istringstream lines(toml);
  std::string line, section;
  while (std::getline(lines, line)) {
    if (line.starts_with('[')) {
      section = line.substr(1, line.find(']') - 1) + ".";
    } else if (const size_t equals = line.find(" = "); equals != std::string::npos) {
      keys[section + line.substr(0, equals)] = line.substr(equals + 3);
    }
  }
  return keys;
}

bool was_in_f16(const std::string& recipe_before) {
  const std::map<std::string, std::string> keys = recipe_keys(recipe_before);
  const auto precision = keys.find("train.precision");
  return precision != keys.end() && (precision->second == "\"f16\"" || precision->second == "\"fp16\"");
}

std::string check_resume(const std::string& from, const std::string& recipe_before, const spec::Recipe& recipe,
                         const spec::ModelSpec& model) {
  std::optional<spec::ModelSpec> before;
  try {
    before = spec::make_model_spec(spec::parse_recipe(recipe_before, from), model.vocab_size);
  } catch (const base::Error&) {  // of another version, or its model.path is gone: the tensors' shapes must do
  }
  if (before) check_model(from, *before, model);
  const std::map<std::string, std::string> old_keys = recipe_keys(recipe_before);
  check_optimizer(from, old_keys, recipe_keys(spec::recipe_to_toml(recipe)));
  std::string changes;
  for (const auto& [key, value] : recipe_keys(spec::recipe_to_toml(recipe))) {
    const auto old = old_keys.find(key);
    if (old == old_keys.end() || old->second == value || key.starts_with("checkpoint.") || key.starts_with("log."))
      continue;
    changes += fmt::format("{}{}: {} -> {}", changes.empty() ? "" : "\n", key, old->second, value);
  }
  return changes;
}

}  // namespace sinter::train
