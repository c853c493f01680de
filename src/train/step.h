// The heart of training: one optimizer step's forward and backward passes on planned memory, with the gradients of all
// ranks summed behind the last of them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "train/gradient_sync.h"
#include "train/objective.h"
#include "train/pass_batch.h"
#include "train/pipeline.h"
#include "train/step_plan.h"
#include "train/step_trace.h"
#include "train/weight_stream.h"

namespace sinter::train {

struct StepResult {
  double loss = 0;             // mean over all supervised tokens (what the objective counts) of the step, all ranks
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
  double count = 0;            // what the objective counts, all ranks
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
  // Keeps references to all but the plan. The transformer's store must train. `objective`: null for LanguageModeling.
  StepRunner(models::Transformer& transformer, const StepShape& shape, StepPlan plan, const parallel::Mesh& mesh,
             Objective* objective = nullptr);
  // Of a rank's chunks; `axes` null: it has the whole model.
  StepRunner(std::vector<models::Transformer*> chunks, const parallel::Axes* axes, const StepShape& shape,
             StepPlan plan, const parallel::Mesh& mesh, Objective* objective = nullptr);
  ~StepRunner();

  // Enqueues the passes of a step. They leave in the store the gradient of loss_scale (1) times the mean loss over the
  // whole step, summed over ranks, and its sums in the record. On one rank nothing waits for the device.
  StepCounts start(const std::vector<data::MicroBatch>& micro_batches, int64_t step, const core::Tensor& loss_scale);
  // total (1) f32 = squared norm of the step's gradient, of the whole model.
  void sum_squares(const core::Tensor& total) const { gradients_.sum_squares(total); }
  const core::Tensor& record() const { return record_; }  // (kRecordSize) f32 on the device
  // The sums of a step, from a copy of its record.
  StepResult read(const StepCounts& counts, const std::vector<float>& record, double loss_scale) const;
  // Both, with a loss scale of 1: waits for the device.
  StepResult run(const std::vector<data::MicroBatch>& micro_batches, int64_t step);
  // Mean loss over all ranks' batches, without gradients; nothing when no token is supervised.
  std::optional<double> evaluate(const std::vector<data::MicroBatch>& micro_batches);

  int64_t num_replays() const;  // passes that ran as a graph
  size_t arena_peak_bytes() const;
  const GradientSync& gradients() const { return gradients_; }
  // Spent on copies between the device and the host's memory, of what is offloaded.
  double copy_seconds() const {
    return weights_.copy_seconds() + gradients_.copy_seconds() + (copies_ ? copies_->busy_seconds() : 0);
  }
  // Of that, what the passes had to wait for.
  double copy_stall_seconds() const {
    return weights_.copy_seconds() + gradients_.copy_seconds() + (copies_ ? copies_->waited_seconds() : 0);
  }
  WeightStream& weights() { return weights_; }        // to be told of new masters (forget)
  ops::Fp8Layers* fp8() const { return fp8_.get(); }  // null when none is in fp8

 private:
  // Passes of one kind enqueue the same work: the shapes on the host and whether gradients are overwritten or added to.
  struct PassKind {
    bool is_first = false, equal_lengths = false;
    int64_t filled_sequences = 0;
    auto operator<=>(const PassKind&) const = default;
  };
  void run_micro_batch(const data::MicroBatch& host, size_t index, int64_t step);
  void run_pipeline(const std::vector<data::MicroBatch>& micro_batches, int64_t step);
  models::DropoutKey dropout_of(size_t index, int64_t step) const;
  void run_pass(const data::MicroBatch& host, const models::DropoutKey& dropout, size_t index);
  bool replay_pass(const data::MicroBatch& host, const PassKind& kind, size_t index);
  void keep_losses(size_t index);
  void set_scale(core::Tensor& scale, const core::Tensor& loss_scale, double value);
  void set_scales(const StepCounts& counts, const core::Tensor& loss_scale);
  void set_hooks();
  void sum_over_ranks(StepCounts& counts);
  Pipeline& pipeline_of(int64_t micro_batches);
  // Whether what this rank has of losses counts: the tensor axis's ranks and other stages' have copies or nothing.
  bool tells_losses() const;
  bool is_alone() const { return mesh_.all().size() == 1; }

  const std::vector<models::Transformer*> chunks_;
  models::Transformer& transformer_;  // the first chunk
  const parallel::Axes* axes_;
  const StepShape shape_;
  const parallel::Mesh& mesh_;
  LanguageModeling modeling_;
  Objective& objective_;
  core::DeviceRuntime& device_;
  const kernels::KernelTable& kernels_;
  class Memory;
  std::unique_ptr<Memory> memory_;
  std::vector<std::unique_ptr<PassBatch>> batches_;  // one; with a pipeline one for every micro-batch
  core::Tensor losses_;                              // (max_micro_batches, T) f32
  core::Tensor mtp_losses_;                          // (heads * max_micro_batches, T) f32
  core::Tensor record_;                              // (kRecordSize) f32
  core::Tensor one_;                                 // (1) f32
  std::unique_ptr<Copies> copies_;                   // of what is offloaded; null: nothing is
  GradientSync gradients_;
  WeightStream weights_;
  StepTrace trace_;
  std::unique_ptr<ops::Fp8Layers> fp8_;
  std::map<int64_t, std::unique_ptr<Pipeline>> pipelines_;  // by micro-batches
  bool uses_graphs_;
  std::map<PassKind, core::RepeatedWork> passes_;  // after all that its graphs read and write
};

}  // namespace sinter::train
