// The kernels of a device one by one at the sizes of real training steps: ceilings first, then each kernel with its
// time, its TFLOP/s or TB/s and its share of the ceiling. Works on any device with a kernel table; made for GPUs.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "core/device.h"

namespace sinter::bench {

// The sizes of one training step that kernels see.
struct StepShape {
  std::string name;
  int64_t sequences, length, layers, channels, heads, kv_heads, ffn, vocab;
  bool is_llama;  // RMSNorm, rotary, gated SiLU, no biases; else GPT-2's LayerNorm, GELU and biases
  int64_t tokens() const { return sequences * length; }
  int64_t head_dim() const { return channels / heads; }
  int64_t num_parameters() const;
};

// "gpt2-124m", "gpt2-1.5b", "llama-1b": the configurations training is measured at.
std::vector<StepShape> training_shapes();

struct KernelTime {
  std::string config, kernel, shape;
  double seconds = 0;
  double flops = 0;  // 0: bound by memory
  double bytes = 0;
  double per_step = 0;  // how often a forward and backward pass runs it
};

struct DeviceCeilings {
  double matmul_flops = 0;      // bf16 product of 8192^3
  double matmul_f32_flops = 0;  // f32 (or TF32 when that is switched on)
  double copy_bytes = 0;        // bytes read and written per second
};

DeviceCeilings measure_ceilings(core::Device device);
// All of them, or those whose name contains `only`.
std::vector<KernelTime> measure_kernels(core::Device device, const StepShape& shape, const std::string& only = "");
// Prints the table of one configuration, and the step that its kernels alone would allow (if all were measured).
void print_kernels(const std::vector<KernelTime>& times, const StepShape& shape, const DeviceCeilings& ceilings);

}  // namespace sinter::bench
