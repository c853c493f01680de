// Checks a model folder against golden answers written beside it (golden.safetensors, golden.json): logits, loss, every
// gradient, ten optimizer steps, greedy tokens.
#pragma once
#include <string>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace sinter::eval {

struct VerifyOptions {
  core::Device device;
  core::DType compute = core::DType::f32;
};

// One comparison: holds when error <= limit.
struct VerifyCheck {
  std::string name;   // "logits", "grad model.norm.weight", "step 3"
  std::string kind;   // what `error` is: "relative", "1 - cosine", "tokens differing"
  double error = 0, limit = 0;
  bool holds() const { return error <= limit; }  // false for NaN
};

// Limits by device and precision: CPU fp32 1e-5 logits, 1e-4 gradients and losses; CUDA fp32 1e-4; bf16 and fp16 loss
// 1e-3 and gradients by cosine 0.995 (0.99 for experts, whose tokens a rounding may send elsewhere). Throws base::Error when the folder cannot be read.
std::vector<VerifyCheck> verify_model(const std::string& folder, const VerifyOptions& options);

}  // namespace sinter::eval
