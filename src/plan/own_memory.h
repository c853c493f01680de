// Memory of one rank of our own trainer, from formulas: what models/transformer and the tape keep, term by term. The
// trainer's plan (the run on the `shapes` backend) must agree; a test beside the trainer holds the two together.
#pragma once
#include <cstdint>

#include "plan/memory.h"
#include "spec/model_spec.h"
#include "spec/parallel_spec.h"

namespace sinter::plan {

struct OwnRun {
  int64_t num_tokens = 0;         // of a micro-batch on this rank
  int64_t num_sequences = 0;      // bound, packed documents counted
  int64_t max_micro_batches = 1;  // per step on this rank
  spec::Recompute recompute = spec::Recompute::none;
  base::DType compute = base::DType::f32;
  int num_moments = 2;                       // AdamW
  base::DType moments = base::DType::f32;    // or bf16: optimizer.states
  base::DType gradients = base::DType::f32;  // of the blocks' matrices, or bf16: train.gradients
};

// Parts: weights (compute format), master (f32, where that differs), gradients, optimizer, activations (kept ones and
// the largest gradients beside them), logits (the chunk at work), buffers (batch, losses). overhead is 0: the context
// and libraries of a GPU are not the trainer's.
MemoryParts own_trainer_memory(const spec::ModelSpec& model, const OwnRun& run);

// Bytes alive at the peak of one micro-batch's forward and backward pass: activations and logits together.
double own_activation_peak(const spec::ModelSpec& model, const OwnRun& run);

}  // namespace sinter::plan
