// Everything a run fixes before its first step: data, architecture, batch, memory.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "data/loader.h"
#include "parallel/axes.h"
#include "parallel/mesh.h"
#include "spec/recipe.h"
#include "tokenizer/tokenizer.h"
#include "train/batch_source.h"
#include "train/disk_space.h"
#include "train/export.h"
#include "train/objective.h"
#include "train/step.h"

namespace sinter::train {

struct MemoryRow {
  std::string what;
  size_t bytes = 0;
};

// The row of a checkpoint's copy.
constexpr const char* kCheckpointCopyRow = "copy of the state while a checkpoint is written";

struct RunPlan {
  spec::Recipe recipe;
  spec::ModelSpec model;
  std::string tokenizer_path;  // "" when there is none
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::vector<NamedFile> tokenizer_files;  // of the first rank, which exports models
  // Of token shards; null where batches come from elsewhere.
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<data::BatchSchedule> batches;
  std::unique_ptr<BatchSource> source;  // may refer to both
  std::shared_ptr<Objective> objective = std::make_shared<LanguageModeling>();
  // What is set where a run tunes a model: its tensors, of which only some train (empty: all of the model, as `model`
  // says), where their first values come from, and what is written at the end.
  std::vector<spec::ParameterSpec> tensors;
  std::vector<spec::LocalParameter> table;  // this rank's, of whatever trains; empty: all of the model
  std::set<std::string> apart;              // of them, the frozen ones that are kept in the format they come in
  std::unique_ptr<parallel::Axes> axes;     // of this rank's place; null while the model is not known
  models::Division division;                // what ranks divide of what they would all hold
  std::shared_ptr<core::Allocator> host;    // for what is offloaded; null: nothing is
  std::shared_ptr<core::RecordingAllocator> host_plan;              // what a store without data takes of it
  size_t host_state_bytes = 0;                                      // offloaded in all, of one rank
  std::function<void(models::ParameterStore& store)> load_weights;  // empty: from the recipe's model.path, or drawn
  // In the background: may read what does not train. `trained`: the masters of what does, in the table's order.
  using Export = std::function<void(const std::string& folder, const std::vector<core::Tensor>& trained,
                                    const models::ParameterStore& store, core::DType dtype)>;
  Export export_model;                     // empty: a Hugging Face folder of the model
  std::string model_file = "config.json";  // a folder with it holds the model
  std::string more_recipe;                 // sections of other verbs, as TOML
  std::string data_text;                   // lines of the plan about the data, where there is no loader
  int64_t steps = 0;
  core::Device device;
  bool is_stand_in = false;  // the device, for one that is not here: its own memory does not count
  StepShape shape;
  StepPlan memory;
  std::vector<MemoryRow> memory_rows;  // of one rank
  std::vector<MemoryRow> more_memory;  // of them, what a verb needs beside training: set before plan_passes()
  // Host memory for a checkpoint's copy while it is written; 0 when checkpoints are written at once. On the CPU it is
  // one of the rows.
  size_t checkpoint_copy_bytes = 0;
  DiskNeed disk;               // of its checkpoints
  double flops_per_token = 0;  // 6 N + 6 L T D

  // Whether this rank has the whole model, for whole sequences.
  bool is_whole() const { return !axes || axes->is_whole(); }
  // The store of this run, on its device or on another.
  models::StoreOptions store_options(core::Device on) const {
    return {.device = on,
            .compute = shape.compute,
            .trains = true,
            .gradients = shape.gradients,
            .apart = apart,
            .division = division,
            .host = on.kind == core::DeviceKind::shapes ? host_plan.get() : host.get()};
  }
  // Whether every rank has all masters.
  bool has_masters() const {
    return is_whole() && !division.weights && !(division.states && shape.compute != core::DType::f32);
  }
  // Whether the first rank's copy holds all masters: one rank always writes a model folder, many every export_every.
  bool copies_masters(int ranks) const { return has_masters() && (ranks == 1 || recipe.checkpoint.export_every > 0); }
  size_t memory_bytes() const;
  // Of the tokenizer that the data were made with, 16 hex digits; "" where the data do not say.
  std::string tokenizer_hash() const;
  std::string recipe_text() const { return spec::recipe_to_toml(recipe) + more_recipe; }
  int64_t tokens() const;                 // of all steps
  double epochs_of(size_t source) const;  // passes over a source of the loader
  // `done` steps saw `tokens_seen` tokens, maybe in other batches than these (other ranks, another recipe): the data go
  // on where they stood, and train.tokens counts what was seen.
  void continue_after(int64_t done, int64_t tokens_seen);
};

// Whether checkpoints come by time rather than by steps.
inline bool saves_by_time(const spec::CheckpointRecipe& recipe) { return recipe.every == 0 && recipe.minutes > 0; }

// Text sources are tokenized by rank 0 while the others wait. An error on any rank is thrown on all (comm::JointError).
RunPlan make_run_plan(const spec::Recipe& recipe, const parallel::Mesh& mesh);
// The parts of it that do not depend on where the batches come from. In this order: recipe, tokenizer and device; then,
// with model, steps, table, objective and the shape's counts set, shape, memory and the checks of both.
void plan_device(RunPlan& plan, const parallel::Mesh& mesh);
void plan_passes(RunPlan& plan, const parallel::Mesh& mesh);
// The plan for people, and as a JSON object.
std::string describe(const RunPlan& plan, const parallel::Mesh& mesh);
std::string describe_json(const RunPlan& plan, const parallel::Mesh& mesh);

}  // namespace sinter::train
