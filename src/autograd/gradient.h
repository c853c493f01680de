// The gradient of a parameter in a step: where it gathers, whether something stands there already, and whether the sum
// of its squares stands beside it. Ops say what their kernels wrote; nobody else sets this by hand.
#pragma once
#include <utility>

#include "core/tensor.h"

namespace sinter::autograd {

class Gradient {
 public:
  Gradient() = default;  // of a frozen tensor: nowhere
  // tensor: f32 (of matrices: or the compute format). squares: (1) f32, or empty.
  explicit Gradient(core::Tensor tensor, core::Tensor squares = {})
      : tensor_(std::move(tensor)), squares_(std::move(squares)) {}

  explicit operator bool() const { return static_cast<bool>(tensor_); }
  const core::Tensor& tensor() const { return tensor_; }
  // Whether the tensor holds this step's sum so far, and kernels add to it; otherwise its content is stale.
  bool accumulates() const { return accumulates_; }
  // Where a kernel that writes the whole tensor may leave the sum of its squares; empty: nowhere.
  const core::Tensor& squares() const { return squares_; }
  bool has_squares() const { return has_squares_; }
  // Whether a kernel that changes a few rows can bring the squares up to date: they stand there, or all are zero.
  bool can_update_squares() const { return squares_ && (!accumulates_ || has_squares_); }

  // A kernel wrote or added to the tensor and left no squares ...
  void wrote() { accumulates_ = true, has_squares_ = false; }
  // ... or left those of the whole tensor in squares(), where there is such a place.
  void wrote_with_squares() { accumulates_ = true, has_squares_ = static_cast<bool>(squares_); }
  // Work that was replayed wrote it, as it did when it was recorded.
  void was_replayed() { accumulates_ = static_cast<bool>(tensor_); }
  // What stands there is stale, as when a step begins: the next write overwrites it.
  void discard() { accumulates_ = has_squares_ = false; }
  // The tensor was changed by others than the ops.
  void forget_squares() { has_squares_ = false; }

 private:
  core::Tensor tensor_, squares_;
  bool accumulates_ = false, has_squares_ = false;
};

}  // namespace sinter::autograd
