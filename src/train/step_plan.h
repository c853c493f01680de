// What a step is made of and the memory that its passes need, known before any of it runs.
#pragma once
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/arena.h"
#include "models/transformer.h"
#include "ops/fp8.h"
#include "parallel/axes.h"
#include "spec/schedule.h"
#include "train/objective.h"

namespace sinter::train {

// What is the same in every micro-batch of a run.
struct StepShape {
  int64_t num_tokens = 0;         // of a micro-batch
  int64_t num_sequences = 0;      // bound
  int64_t window = 0;             // bound on a sequence's length
  int64_t max_micro_batches = 1;  // of one rank in one step
  autograd::Recompute recompute = autograd::Recompute::none;
  core::DType compute = core::DType::f32;
  bool fp8 = false;                          // the blocks' dense linear layers in fp8; compute is bf16 or f16
  core::DType gradients = core::DType::f32;  // of the matrices of the blocks
  double mtp_weight = 0;
  uint64_t seed = 0;
  core::Allocator* host = nullptr;  // where inputs of recomputed blocks wait; null: on the device
  bool has_weights = false;         // micro-batches weigh their tokens
  bool has_noise = false;           // and have noise for their embeddings
  spec::PipelineShape pipeline;     // of max_micro_batches; pp 1: none
  bool graphs = false;              // capture the passes and replay them, unless graph_obstacle() names a reason not to
};

// Why the passes of a run cannot be captured once and replayed (core/graph.h); empty when they can. A pass may be
// replayed when all that differs between two of its kind lies in device memory, and nothing but the device has a part
// in it.
std::string graph_obstacle(const spec::ModelSpec& spec, core::Device device, int ranks);

// Memory of the passes, from a run without data.
struct StepPlan {
  core::MemoryPlan train, evaluate;
  // With a pipeline in their place: of each chunk of this rank.
  struct Chunk {
    core::PassPlan pass;
    int64_t in_flight = 1;  // passes kept for their backward at once
    core::MemoryPlan evaluate;
  };
  std::vector<Chunk> chunks;
  size_t train_peak_bytes = 0;  // most bytes alive at once: what no layout can go below
  size_t host_bytes = 0;        // of StepShape::host
  size_t fp8_bytes = 0;         // fp8 weights and scales, beside the arena
  size_t arena_bytes() const;
};
// `table`: the store's, empty for all of the model; `apart`: as in StoreOptions. `objective`: null for
// LanguageModeling. `axes`: null where this rank has the whole model. Talks to no one.
StepPlan plan_step(const spec::ModelSpec& spec, const StepShape& shape,
                   const std::vector<spec::LocalParameter>& table = {}, Objective* objective = nullptr,
                   const std::set<std::string>& apart = {}, const parallel::Axes* axes = nullptr);

bool has_dropout(const spec::ModelSpec& spec, const models::ParameterStore& store);
// Null unless asked for. Evaluation does without: it tells the loss of the weights that are exported.
std::unique_ptr<ops::Fp8Layers> make_fp8(const StepShape& shape, models::ParameterStore& store);

}  // namespace sinter::train
