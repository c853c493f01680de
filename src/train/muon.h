// Muon: momentum whose direction is made orthogonal by Newton-Schulz iterations, for the matrices of the blocks.
// Fused tensors (QKV, gate and up, stacks of experts) are taken apart: each matrix on disk is orthogonalised by itself.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "models/parameter_store.h"
#include "spec/recipe.h"

namespace sinter::train {

class Muon {
 public:
  Muon(const spec::OptimizerRecipe& recipe, models::ParameterStore& store);
  // Whether Muon updates this tensor.
  static bool takes(const spec::Parameter& info);

  // For each matrix: b = momentum b + (1 - momentum) g; d = orthogonal((1 - momentum) g + momentum b);
  // w = (1 - lr weight_decay) w - lr sqrt(max(1, rows / columns)) d.
  void update(const core::Tensor& control, float lr);

  struct State {
    size_t slot = 0;
    core::Tensor momentum;  // shaped as the tensor
  };
  const std::vector<State>& states() const { return states_; }
  size_t bytes() const;

 private:
  void update_matrix(const core::Tensor& master, const core::Tensor& grad, const core::Tensor& momentum,
                     float grad_scale, float lr);
  // x (rows, columns) becomes orthogonal, in place; uses the scratch.
  void orthogonalize(const core::Tensor& x);

  const spec::OptimizerRecipe recipe_;
  models::ParameterStore& store_;
  core::Stream& stream_;
  const kernels::KernelTable& kernels_;
  std::vector<State> states_;
  core::Tensor direction_, next_;  // of the largest matrix; these four in the compute format
  core::Tensor gram_, square_;     // of the largest smaller side, squared
  core::Tensor norm_;              // (1)
};

}  // namespace sinter::train
