// How a training step is spread over ranks and what it keeps in memory, as plain data. The planner, the simulator, the
// recipe's [parallel] section and the trainer read the same struct.
#pragma once
#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "spec/model_spec.h"

namespace sinter::spec {

// zero_bubble: ZB-H1, 1F1B whose weight gradients are actions of their own that fill the bubble.
enum class PipelineKind { gpipe, one_f_one_b, interleaved, zero_bubble };
// How keys and values get to the ranks of the context axis: passed around a ring, or gathered from all at once.
enum class ContextKind { ring, gather };
// Whether the axes are those written down, the planner's best for the launch, or the fastest of its best when tried.
enum class LayoutChoice { given, automatic, tune };
// What the backward pass computes again: nothing; what is cheap (our tape: outputs of norms and activations from their
// inputs; other programs: the attention core); whole blocks from their input.
enum class Recompute { none, selective, full };

// State kept in host memory and moved when it is used.
struct OffloadSpec {
  bool optimizer = false;  // master weights and moments; the update runs on the host
  bool gradients = false;
  bool parameters = false;   // weights stream in layer by layer
  bool activations = false;  // checkpointed block inputs (or all stored activations where nothing is recomputed)
  std::string folder;        // "" = host memory; else files in this folder hold what is offloaded

  bool has_state() const { return optimizer || gradients || parameters; }
};

struct ParallelSpec {
  // ranks = dp() * tp * pp * cp. Expert parallelism overlays data and context parallelism: ep divides dp() * cp (or, in
  // plans for other programs, dp() * cp * tp).
  int64_t shard = 1;    // data-parallel ranks among which ZeRO divides state; 0 in a recipe: what the launch leaves
  int64_t replica = 1;  // copies of that group; > 1 with shard > 1 is hybrid sharding
  int64_t tp = 1;
  bool sequence_parallel = false;  // norms, dropout and residual split along the sequence inside the tp group
  int64_t pp = 1;
  int64_t interleave = 1;  // model chunks per pipeline rank; > 1 only with PipelineKind::interleaved
  PipelineKind schedule = PipelineKind::one_f_one_b;
  int64_t cp = 1;
  ContextKind context = ContextKind::ring;
  int64_t ep = 1;
  double expert_capacity = 1.25;  // rows that a rank takes from others in one round, over those of an even spread
  LayoutChoice choice = LayoutChoice::given;
  int zero = 0;           // 0 nothing, 1 optimizer state, 2 and gradients, 3 and weights are divided by `shard`
  double bucket_mib = 4;  // gradients reduced together behind the backward pass
  double timeout = 600;   // seconds a rank waits for the others in one call; 0 = for ever

  Recompute recompute = Recompute::none;
  OffloadSpec offload;
  double device_memory_gib = 0;  // the most that a rank may take of its device; 0: all that is there

  // Precision of the step.
  base::DType compute = base::DType::bf16;        // weights in use and stored activations
  base::DType main_gradients = base::DType::f32;  // what micro-batches are summed in
  base::DType master = base::DType::f32;          // kept beside the weights when it differs from `compute`
  base::DType moments = base::DType::f32;         // each of the optimizer's moments
  int num_moments = 2;                            // AdamW 2, momentum, Lion, Muon 1, plain SGD 0

  int64_t micro_batch = 1;   // sequences of one forward pass on one data-parallel rank
  int64_t global_batch = 1;  // sequences of one optimizer step over all ranks
  int64_t seq_len = 2048;

  int64_t dp() const { return shard * replica; }
  int64_t ranks() const { return dp() * tp * pp * cp; }
  // Micro-batches each pipeline runs per step.
  int64_t micro_batches() const { return global_batch / (micro_batch * dp()); }
};

const char* pipeline_name(PipelineKind kind);     // "gpipe", "1f1b", "interleaved", "zb-h1"
const char* recompute_name(Recompute recompute);  // "none", "selective", "full"
PipelineKind parse_pipeline(const std::string& text);
Recompute parse_recompute(const std::string& text);

// "dp8 (shard 4 x replica 2) tp4+sp pp2x2 zero1 full mb2": for tables and messages.
std::string describe(const ParallelSpec& parallel);

// Why this model cannot run in this layout, with the nearest valid choice, or "" when it can.
std::string layout_problem(const ParallelSpec& parallel, const ModelSpec& model);
// Throws base::Error with that text.
void check_parallel_spec(const ParallelSpec& parallel, const ModelSpec& model);

}  // namespace sinter::spec
