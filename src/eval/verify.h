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
  std::string name;  // "logits", "grad model.norm.weight", "step 3"
  std::string kind;  // what `error` is: "relative", "1 - cosine", "tokens differing"
  double error = 0, limit = 0;
  std::string note;         // what the figures do not say; usually empty
  bool is_skipped = false;  // not compared: the note says why. Neither passed nor failed
  bool holds() const { return !is_skipped && error <= limit; }  // false for NaN
  bool fails() const { return !is_skipped && !holds(); }
};

// Limits by device and precision: CPU fp32 1e-5 logits, 1e-4 gradients and losses; CUDA fp32 1e-4; bf16 and fp16 loss
// 1e-3 and gradients by cosine 0.995. Throws base::Error when the folder cannot be read.
//
// A mixture of experts has tokens between two experts, which rounding may send to the other one. In 16 bits logits,
// loss and gradients are therefore compared with every token at the experts it has in fp32, and the check "routing"
// says how far apart, in fp32, the experts are that were chosen otherwise, and in its note what those choices give. In
// fp32, where a training loss disagrees and a token was on the edge to the last bits at that step or before, the steps
// are repeated with that token at the other expert; a check "routing, step N" tells when all losses then hold.
std::vector<VerifyCheck> verify_model(const std::string& folder, const VerifyOptions& options);

}  // namespace sinter::eval
