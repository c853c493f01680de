// What all tuning runs share: the plan of a run around its batches and its objective.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "spec/parameters.h"
#include "spec/tune_recipe.h"
#include "tokenizer/chat_template.h"
#include "train/run_plan.h"
#include "tune/data/record.h"
#include "tune/data/render.h"

namespace sinter::tune {

// Begins a plan: recipe, device, tokenizer and model. Collective.
train::RunPlan begin_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);

// The sizes of a run's batches.
struct BatchSizes {
  int64_t num_tokens = 0, num_sequences = 0;  // of a micro-batch
  int64_t micro_batches = 1;                  // of one rank in a step
  bool has_weights = false, has_noise = false;
};
// Tensors that train beside an adapter or all of a model: a score, a value head. They begin as they are drawn.
struct MoreTensors {
  std::vector<spec::ParameterSpec> table;
  // A score: the adapter is that of a sequence classifier, whose file has it (PEFT's modules_to_save). Else the tensors
  // go into a file of their own, value_head.safetensors.
  bool is_classifier = false;
};

// Ends it, with source, objective and steps set: what trains (an adapter or all), where weights come from and what is
// written, then memory. Throws base::Error when it does not fit together.
void end_plan(train::RunPlan& plan, const spec::TuneRecipe& recipe, const parallel::Mesh& mesh, const BatchSizes& sizes,
              const MoreTensors& more = {});

// How the weights of a plain folder are kept where they do not train. Quantized folders stay as they are.
enum class BaseFormat { as_stored, nf4 };
// The tensors of a model folder that are quantized there, or will be.
std::set<std::string> tensors_apart(const std::string& base, const spec::ModelSpec& model,
                                    BaseFormat format = BaseFormat::as_stored);
// The weights of a model folder, quantized ones as the store keeps them; adapters' tensors are left as they are.
void load_base(models::ParameterStore& store, const spec::ModelSpec& model, const std::string& base,
               BaseFormat format = BaseFormat::as_stored);

// The weights of another model that a run keeps in memory: a teacher, a reference.
size_t model_bytes(const std::string& folder, const train::RunPlan& plan);

// Micro-batches of one rank in a step, from train.batch_tokens.
int64_t micro_batches_of(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);

// Rows as records; those that cannot be read are counted and told of. Weights say how often a source's rows are seen in
// an epoch: 2 twice, 0.5 every other.
std::vector<Record> read_sources(const std::vector<spec::SourceRecipe>& sources, const spec::TuneRecipe& recipe);
// A share of the records, evenly spread, leaves them for the validation.
std::vector<Record> hold_out(std::vector<Record>& records, double share);
// Throws base::Error where nothing can be learned: for the first problem, or because even the shortest row is longer
// than data.sequence_length.
void check_any_learned(bool is_none, const char* what, const std::string& first_problem, int64_t shortest,
                       const spec::TuneRecipe& recipe);
// Renders records to tokens as the recipe says. Lives as long as the tokenizer.
class RecipeRenderer {
 public:
  RecipeRenderer(const tokenizer::Tokenizer& tokenizer, const spec::TuneRecipe& recipe);
  const Renderer& operator*() const { return *renderer_; }
  const Renderer* operator->() const { return renderer_.get(); }

 private:
  std::unique_ptr<tokenizer::ChatTemplate> chat_;
  std::unique_ptr<Renderer> renderer_;
};

// Plans of the verbs, one file each.
train::RunPlan make_sft_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);
train::RunPlan make_grpo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);
train::RunPlan make_ppo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);
train::RunPlan make_dpo_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);
train::RunPlan make_reward_plan(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);

}  // namespace sinter::tune
