// How a linear layer sees its weight: the numbers to multiply by, and what was derived from them.
#pragma once
#include <cstdint>
#include <memory>

#include "core/tensor.h"

namespace sinter::core {

enum class WeightFormat : uint8_t { plain };  // fp8 copies and quantized blocks become entries here

// Layouts a backend derived from a weight (repacked panels). Kernels fill it when `version` is older than the weight's.
class DerivedWeight {
 public:
  virtual ~DerivedWeight() = default;
  uint64_t version = 0;
};

struct WeightView {
  Tensor data;  // (N, K), or (E, N, K) for a stack of experts, in the compute format
  WeightFormat format = WeightFormat::plain;
  Tensor scales;         // for scaled formats
  uint64_t version = 1;  // grows whenever the master changes
  // Where a backend may keep a repacked copy between calls; null in training, where every step changes the weight.
  std::shared_ptr<DerivedWeight>* derived = nullptr;
};

}  // namespace sinter::core
