// Everything a run fixes before its first step: data, architecture, batch, memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "data/loader.h"
#include "parallel/mesh.h"
#include "spec/recipe.h"
#include "tokenizer/tokenizer.h"
#include "train/export.h"
#include "train/step.h"

namespace sinter::train {

struct MemoryRow {
  std::string what;
  size_t bytes = 0;
};

struct RunPlan {
  spec::Recipe recipe;
  spec::ModelSpec model;
  std::string tokenizer_path;  // "" when there is none
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
  std::vector<NamedFile> tokenizer_files;  // of the first rank, which exports models
  std::unique_ptr<data::Loader> loader;
  std::unique_ptr<data::BatchSchedule> batches;
  int64_t steps = 0;
  core::Device device;
  StepShape shape;
  StepPlan memory;
  std::vector<MemoryRow> memory_rows;  // of one rank
  // Host memory for a checkpoint's copy while it is written; 0 when checkpoints are written at once. On the CPU it is
  // one of the rows.
  size_t checkpoint_copy_bytes = 0;
  double flops_per_token = 0;  // 6 N + 6 L T D

  // The store of this run, on its device or on another.
  models::StoreOptions store_options(core::Device on) const {
    return {.device = on, .compute = shape.compute, .trains = true, .gradients = shape.gradients};
  }
  // Whether the first rank's copy holds all masters: one rank always writes a model folder, many every export_every.
  bool copies_masters(int ranks) const { return ranks == 1 || recipe.checkpoint.export_every > 0; }
  size_t memory_bytes() const;
  // Of the tokenizer that the data were made with, 16 hex digits; "" where the data do not say.
  std::string tokenizer_hash() const;
  int64_t tokens() const { return batches->sequences_before(steps) * shape.window; }
  // `done` steps saw `tokens_seen` tokens, maybe in other batches than these (other ranks, another recipe): the data go
  // on where they stood, and train.tokens counts what was seen.
  void continue_after(int64_t done, int64_t tokens_seen);
};

// Text sources are tokenized by rank 0 while the others wait. An error on any rank is thrown on all (comm::JointError).
RunPlan make_run_plan(const spec::Recipe& recipe, const parallel::Mesh& mesh);
// The plan for people, and as a JSON object.
std::string describe(const RunPlan& plan, const parallel::Mesh& mesh);
std::string describe_json(const RunPlan& plan, const parallel::Mesh& mesh);

}  // namespace sinter::train
