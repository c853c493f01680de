// Memory of one device, by part and pipeline stage, for any layout. Formulas: model state as in ZeRO (Rajbhandari et
// al. 2020), activations as in Korthikanti et al. 2022 with the variants of today's programs (see Software).
#pragma once
#include <array>
#include <string_view>
#include <vector>

#include "plan/model_shape.h"
#include "plan/software.h"
#include "spec/parallel_spec.h"
#include "spec/schedule.h"

namespace sinter::plan {

struct MemoryParts {
  double weights = 0;      // in compute precision
  double gradients = 0;    // in the precision micro-batches are summed in
  double master = 0;       // full-precision copy of the weights
  double optimizer = 0;    // moments
  double activations = 0;  // kept for the backward pass, all micro-batches in flight
  double logits = 0;
  double buffers = 0;   // gathered layers, buckets, temporaries of the update
  double overhead = 0;  // context, libraries, fragmentation

  double model_state() const { return weights + gradients + master + optimizer; }
  double total() const { return model_state() + activations + logits + buffers + overhead; }
};
inline constexpr std::array<std::string_view, 8> kMemoryPartNames{"weights",     "gradients", "master",  "optimizer",
                                                                  "activations", "logits",    "buffers", "overhead"};
std::array<double, 8> part_values(const MemoryParts& parts);  // in the order of the names

struct StageMemory {
  int64_t stage = 0;
  int64_t num_layers = 0;
  double parameters = 0;  // on this device, before ZeRO divides them
  MemoryParts device;
  double host_bytes = 0;  // what offload keeps in host memory for this device
};

struct MemoryEstimate {
  std::vector<StageMemory> stages;  // (pp)
  const StageMemory& worst() const;
  bool fits(double memory_bytes) const { return worst().device.total() <= memory_bytes; }
};

MemoryEstimate plan_memory(const ModelShape& model, const spec::ParallelSpec& parallel, const Software& software);

// One pipeline stage only: what a search calls.
StageMemory plan_stage_memory(const ModelShape& model, const spec::ParallelSpec& parallel, const Software& software,
                              int64_t stage);

// Bytes one block keeps for the backward pass of one micro-batch on one device, by part of the block.
struct BlockActivations {
  double attention = 0;       // norm input, projections' inputs, q, k, v, attention's output
  double attention_core = 0;  // the s x s terms: 5 a s^2 b of Korthikanti et al.; log-sum-exp with flash attention
  double mlp = 0;
  double activation = 0;  // of `mlp`: the output of the MLP's activation
  double checkpoint = 0;  // the block's input alone, kept by full recompute
  double total() const { return attention + attention_core + mlp; }
};
BlockActivations block_activations(const ModelShape& model, const BlockShape& block, const spec::ParallelSpec& parallel,
                                   const Software& software);

// Parameters a device of pipeline stage `stage` holds before ZeRO: dense ones and those of experts apart, because they
// are replicated over different groups.
struct StageParameters {
  double dense = 0, experts = 0;
  double largest_block = 0;  // dense and expert parameters of the largest block (what ZeRO-3 gathers at once)
  int64_t num_layers = 0;
};
StageParameters stage_parameters(const ModelShape& model, const spec::ParallelSpec& parallel, int64_t stage,
                                 const Software& software = find_software("sinter"));
// Layers of one chunk of the pipeline, the way the program cuts the model.
spec::LayerRange stage_layers(const ModelShape& model, const spec::ParallelSpec& parallel, const Software& software,
                              int64_t virtual_stage);

// Ways ZeRO divides the dense and the expert parameters of a device.
int64_t dense_shards(const spec::ParallelSpec& parallel);
int64_t expert_shards(const spec::ParallelSpec& parallel);
// Experts' matrices are cut by tp too, unless ep already takes the tp ranks.
int64_t expert_tp(const spec::ParallelSpec& parallel);

}  // namespace sinter::plan
