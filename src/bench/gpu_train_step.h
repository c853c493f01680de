// Whole training steps on a GPU: forward, backward, clipping and AdamW over accumulated micro-batches on planned
// memory, and the share of what the step's own matrix products and attention alone would allow.
#pragma once
#include "bench/report.h"
#include "core/tensor.h"
#include "spec/model_spec.h"

namespace sinter::bench {

struct TrainStepCase {
  std::string name;
  spec::ModelSpec model;
  int64_t batch = 1, sequence = 64, accumulation = 1;
  core::Device device;
  core::DType compute = core::DType::f32;
  bool fp8 = false;       // the blocks' linear layers
  bool is_small = false;  // the kernels are shorter than their launches: what CUDA graphs are for
  bool graphs = true;     // passes captured and replayed
};

struct TrainStepRate {
  double step_seconds = 0, tokens_per_second = 0, flops_per_second = 0;
  double enqueue_seconds = 0;  // the host's share of a step: until all passes are enqueued
  // Of the step, each measured alone: matrix products with the head's, attention, loss, clipping and AdamW.
  double matmul_seconds = 0, attention_seconds = 0, loss_seconds = 0, optimizer_seconds = 0;
  double parts_seconds() const { return matmul_seconds + attention_seconds; }
  double loss = 0;
  size_t planned_bytes = 0;  // weights, gradients, optimizer and the arena, before anything is allocated
  size_t peak_bytes = 0;     // the allocator's high-water mark
};

// The median step of about `seconds`. FLOPs per token are 6 N + 6 L T C, N without the position table.
TrainStepRate measure_train_step(const TrainStepCase& c, double seconds);

// GPT-2 124M (64 x 1024, 524,288 tokens a step), GPT-2 1.5B (16 x 1024), Llama 1B (8 x 4096), and GPT-2 124M at a small
// batch (4 x 256) with and without CUDA graphs, in the asked precisions. No rows without a GPU.
Report bench_gpu_train_step(const Options& options);

}  // namespace sinter::bench
