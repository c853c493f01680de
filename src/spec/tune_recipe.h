// The recipe of a tuning run: a training recipe (recipe.h) with two more sections, [adapter] and [tune]. In [data]
// sources are conversations or pairs instead of token shards, and sequence_length is the tokens of one row.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spec/adapter.h"
#include "spec/recipe.h"
#include "spec/recipe_keys.h"

namespace sinter::spec {

struct TuneSection {
  std::string format = "automatic";           // of the rows (docs/tuning_data.md)
  std::map<std::string, std::string> fields;  // what a row calls them: {prompt = "problem"}
  std::string train_on = "assistant";         // assistant, last or all: whose tokens are learned
  std::string chat_template;                  // a Jinja file; "" = the model's
  double epochs = 1;                          // used when train.steps and train.tokens are 0
  bool packing = true;                        // several samples in a row, each seeing only itself

  double neftune_alpha = 0;  // sft: noise on the embeddings; 0: none

  // sft: a teacher whose probabilities are learned beside the data
  std::string teacher;        // a model folder with the same tokens
  int64_t teacher_top_k = 8;  // of its likeliest tokens; the rest counts as one
  double teacher_weight = 1;  // share of the loss

  // dpo: the objective and its numbers
  std::string loss = "sigmoid";  // sigmoid, hinge, ipo, cdpo, robust, simpo, cpo, orpo, kto
  double beta = 0.1;
  double label_smoothing = 0;
  double gamma = 0.5;     // simpo: the margin
  double cpo_alpha = 1;   // cpo: weight of the chosen answers' loss
  std::string reference;  // a model folder; "" = the model as it is before tuning

  // grpo and ppo
  int64_t prompts = 8;          // of one step, all ranks
  int64_t group = 8;            // answers to one prompt
  int64_t max_new_tokens = 64;  // of an answer
  double temperature = 1;
  int64_t iterations = 1;                     // steps made of one set of answers
  std::vector<std::string> rewards{"exact"};  // docs/tuning.md lists them; their sum counts
  std::string reward_field = "answer";        // of the row: the right answer
  std::string reward_extract;                 // a regular expression that finds the answer in what was said
  std::string reward_pattern;                 // regex: what has to be found
  std::string reward_schema;                  // schema: a JSON schema, or its file
  std::vector<std::string> reward_command;    // program: what is run
  std::string advantages = "group";           // group, batch, none: what rewards are divided by
  double clip_low = 0.2, clip_high = 0.2;
  double kl = 0;                 // weight of the distance to the reference
  std::string rl_loss = "grpo";  // grpo, bnpo, dapo, dr_grpo, gspo, cispo
  bool skip_unfinished = false;  // answers cut for want of room are not learned from
  std::string reward_model;      // model: the folder of a sequence classifier

  // ppo
  bool kl_in_loss = false;  // else every token's reward is less by it
  double discount = 1, gae_lambda = 0.95;
  double value_weight = 0.1, value_clip = 0.2;
};

struct TuneRecipe {
  Recipe base;
  std::string adapter_kind = "lora";  // lora, rslora, dora, qlora, or full: all of the model trains
  std::string adapter_from;           // an adapter folder to go on from; "" = a new adapter
  AdapterSpec adapter;
  TuneSection tune;
  bool counts_epochs = false;  // neither train.steps nor train.tokens is given
  bool is_stand_in = false;    // no key: train.device is planned for another one, which is not here
  bool is_qlora() const { return adapter_kind == "qlora"; }
  bool has_adapter() const { return adapter_kind != "full"; }
};

// As parse_recipe and load_recipe.
TuneRecipe parse_tune_recipe(std::string_view toml, const std::string& origin,
                             const std::vector<std::string>& overrides = {});
TuneRecipe load_tune_recipe(const std::string& path, const std::vector<std::string>& overrides = {});
// [adapter] and [tune] as TOML, every key written out.
std::string tune_sections_to_toml(const TuneRecipe& recipe);
// Their keys, for people.
std::vector<RecipeKey> tune_recipe_keys();

}  // namespace sinter::spec
