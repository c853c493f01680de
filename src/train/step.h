// The heart of training: one optimizer step's forward and backward passes on planned memory, with the gradients of all
// ranks summed behind the last of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/arena.h"
#include "core/graph.h"
#include "data/batch.h"
#include "kernels/table.h"
#include "models/transformer.h"
#include "ops/fp8.h"
#include "parallel/data.h"
#include "parallel/mesh.h"
#include "spec/recipe.h"

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
  bool graphs = false;  // capture the passes and replay them, unless graph_obstacle() names a reason not to
};

// Why the passes of a run cannot be captured once and replayed (core/graph.h); empty when they can. A pass may be
// replayed when all that differs between two of its kind lies in device memory, and nothing but the device has a part
// in it.
std::string graph_obstacle(const spec::ModelSpec& spec, core::Device device, int ranks);

// Memory of the passes, from a run without data.
struct StepPlan {
  core::MemoryPlan train, evaluate;
  size_t train_peak_bytes = 0;  // most bytes alive at once: what no layout can go below
  size_t fp8_bytes = 0;         // fp8 weights and scales, beside the arena
  size_t arena_bytes() const { return std::max(train.total_bytes, evaluate.total_bytes); }
};
StepPlan plan_step(const spec::ModelSpec& spec, const StepShape& shape);

struct StepResult {
  double loss = 0;             // mean over all supervised tokens of the step, all ranks
  int64_t num_supervised = 0;  // all ranks
  double balance_loss = 0;     // mean over micro-batches of the layers' sum; mixture of experts only
  double mtp_loss = 0;         // mean over the extra heads
  // Squared norm of the mean gradient of one micro-batch (averaged over ranks) and its tokens: for the noise scale.
  // Nothing when a step is one micro-batch, or not among those that measure it.
  std::optional<double> small_norm_squared;
  double small_tokens = 0;
};

// What the host knows of a step before its numbers have come over.
struct StepCounts {
  int64_t num_supervised = 0;  // all ranks
  double micro_batches = 1;    // all ranks
  double small_tokens = 0;     // supervised tokens of the first micro-batch, mean over ranks
  double small_factor = 1;     // of its norm in the sums: what makes it that of a mean gradient
  bool has_small = false;
};

// Places of a step's sums in its record, behind what step_control writes. All are over all ranks.
enum StepSums : int64_t {
  kSumLoss = kernels::kRecordExtra,
  kSumMtp,
  kSumBalance,
  kSumSmallSquares,  // squared norm of the gradient after the first micro-batch, of the scaled loss
};

class StepRunner {
 public:
  // Keeps references to all but the plan. The transformer's store must train.
  StepRunner(models::Transformer& transformer, const StepShape& shape, StepPlan plan,
             const parallel::Mesh& mesh);
  ~StepRunner();

  // Enqueues the passes of a step. They leave in the store the gradient of loss_scale (1) times the mean loss over the
  // whole step, summed over ranks, and its sums in the record. On one rank nothing waits for the device.
  StepCounts start(const std::vector<data::MicroBatch>& micro_batches, int64_t step, const core::Tensor& loss_scale);
  const core::Tensor& record() const { return record_; }  // (kRecordSize) f32 on the device
  // The sums of a step, from a copy of its record.
  StepResult read(const StepCounts& counts, const std::vector<float>& record, double loss_scale) const;
  // Both, with a loss scale of 1: waits for the device.
  StepResult run(const std::vector<data::MicroBatch>& micro_batches, int64_t step);
  // Mean loss over all ranks' batches, without gradients; nothing when no token is supervised.
  std::optional<double> evaluate(const std::vector<data::MicroBatch>& micro_batches);

  int64_t num_replays() const;  // passes that ran as a graph
  size_t arena_peak_bytes() const { return arena_.stats().peak_bytes; }
  const parallel::GradientReducer& reducer() const { return reducer_; }
  ops::Fp8Layers* fp8() const { return fp8_.get(); }  // null when none is in fp8

 private:
  // Passes of one kind enqueue the same work: the shapes on the host and whether gradients are overwritten or added to.
  struct PassKind {
    bool is_first = false, equal_lengths = false;
    int64_t filled_sequences = 0;
    auto operator<=>(const PassKind&) const = default;
  };
  void run_micro_batch(const data::MicroBatch& host, size_t index, int64_t micro_batches, int64_t step);
  void load_batch(const data::MicroBatch& host);
  void run_pass(const models::DropoutKey& dropout);
  bool replay_pass(const PassKind& kind);
  void keep_losses(int64_t index);
  void set_scale(core::Tensor& scale, const core::Tensor& loss_scale, double value);
  void sum_over_ranks(StepCounts& counts);
  void mark_layer(int64_t layer);

  models::Transformer& transformer_;
  const StepShape shape_;
  const parallel::Mesh& mesh_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  core::PlannedArena arena_;
  class BorrowedBlock;
  std::unique_ptr<BorrowedBlock> borrowed_;
  std::unique_ptr<core::PlannedArena> evaluate_arena_;
  data::DeviceBatch batch_;
  models::LossPlaces places_;
  core::Tensor losses_;      // (max_micro_batches, T) f32
  core::Tensor mtp_losses_;  // (heads * max_micro_batches, T) f32
  core::Tensor record_;      // (kRecordSize) f32
  core::Tensor one_;         // (1) f32
  parallel::GradientReducer reducer_;
  std::unique_ptr<ops::Fp8Layers> fp8_;
  struct LayerRange {
    int64_t layer, begin, end;
  };
  std::vector<LayerRange> layer_ranges_;
  bool is_last_ = false;
  bool uses_graphs_;
  std::map<PassKind, core::RepeatedWork> passes_;  // after all that its graphs read and write
};

}  // namespace sinter::train
