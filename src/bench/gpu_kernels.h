// The kernels of a GPU one by one at the sizes of real training steps: each with its time, its TFLOP/s or TB/s and its
// share of the ceiling.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "bench/report.h"
#include "core/device.h"

namespace sinter::bench {

// The sizes of one training step that kernels see.
struct TrainingShape {
  std::string name;
  int64_t sequences, length, layers, channels, heads, kv_heads, ffn, vocab;
  bool is_llama;  // RMSNorm, rotary, gated SiLU, no biases; else GPT-2's LayerNorm, GELU and biases
  int64_t tokens() const { return sequences * length; }
  int64_t head_dim() const { return channels / heads; }
  int64_t num_parameters() const;
};

// The models training is measured at, by the names they have in `gpu_train_step`.
std::vector<TrainingShape> training_shapes();

struct KernelTime {
  std::string model, kernel, shape;
  double seconds = 0;  // 0: it failed
  double flops = 0;    // 0: bound by memory
  double bytes = 0;
  double per_step = 0;  // how often a forward and backward pass runs it
};

// All of them, or those with `only` in "model kernel". Works on any device with a kernel table. A kernel that fails is
// a warning.
std::vector<KernelTime> measure_kernels(core::Device device, const TrainingShape& shape, const std::string& only = "");

// Adds a row for every kernel. Its share is of the bf16 product (fp8 products too) or, bound by memory, of the copy.
void add_kernel_rows(Report& report, const std::vector<KernelTime>& times, const DeviceCeilings& ceilings);
// Adds what a pass over the step's kernels would take, all of them and products and attention alone, where none of them
// failed.
void add_pass_rows(Report& report, const std::vector<KernelTime>& times, const TrainingShape& shape);

// A report of these columns without rows.
Report make_kernel_report();
// No rows without a GPU. The sums over a pass come with the models of which every kernel was asked for.
Report bench_gpu_kernels(const Options& options);

}  // namespace sinter::bench
