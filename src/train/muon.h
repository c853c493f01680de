// Muon: momentum whose direction is made orthogonal by Newton-Schulz iterations, for the matrices of the blocks.
// Fused tensors (QKV, gate and up, stacks of experts) are taken apart: each matrix on disk is orthogonalised by itself.
// Matrices of one shape go through the iterations together, and nothing on the way is read by the host.
//
// Where ranks divide the state or cut matrices (tensor axis) every rank keeps the momentum of its elements. A block at
// a time, directions are gathered, the matrices are given out among the ranks that divide them, and what they made of
// them is handed round; each rank then moves its own elements.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/table.h"
#include "models/parameter_store.h"
#include "spec/recipe.h"
#include "train/optimizer.h"

namespace sinter::train {

class Muon {
 public:
  // Keeps the momentum of the elements that this rank updates. `shard`: of the store's division.
  Muon(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, const OptimizerShard& shard = {});
  // Whether Muon updates this tensor.
  static bool takes(const spec::ParameterSpec& info);

  // For each matrix: b = momentum b + (1 - momentum) g; d = orthogonal((1 - momentum) g + momentum b);
  // w = (1 - lr weight_decay) w - lr sqrt(max(1, rows / columns)) d. control (kControlSize) as step_control writes it;
  // `key` draws the rounding of bf16 states.
  void update(const core::Tensor& control, float lr, kernels::RandomKey key);

  struct State {
    size_t slot = 0;
    core::Tensor momentum;  // shaped as the tensor, or flat where ranks divide it
    int64_t first = 0;      // its first element in the tensor
  };
  const std::vector<State>& states() const { return states_; }
  size_t bytes() const;

 private:
  // A matrix inside a stored tensor.
  struct Matrix {
    size_t state = 0;       // its tensor among the states
    int64_t first_row = 0;  // in the tensor, stacks of experts counted through
  };
  // Matrices of one shape, as many as the scratch holds.
  struct Group {
    int64_t rows = 0, columns = 0;
    std::vector<Matrix> matrices;
  };
  void make_groups();
  void make_scratch();
  void make_divided_scratch();
  void update_segment(const models::Segment& segment, const core::Tensor& control, float lr, kernels::RandomKey key);
  void orthogonalize_tensor(const models::ParameterStore::Slot& slot, const core::Tensor& values);
  void exchange_boxes(const models::ParameterStore::Slot& slot, const core::Tensor& local, const core::Tensor& whole,
                      bool is_gathered) const;
  void update_group(const Group& group, const core::Tensor& control, float lr, kernels::RandomKey key);
  // x (batch * rows, columns) holds `batch` matrices; returns where they lie orthogonal: in x or in the scratch.
  core::Tensor orthogonalize(core::Tensor x, int64_t batch);

  const spec::OptimizerRecipe recipe_;
  const OptimizerShard shard_;
  const bool is_divided_;
  models::ParameterStore& store_;
  core::Stream& stream_;
  const kernels::KernelTable& kernels_;
  std::vector<State> states_;
  std::vector<Group> groups_;
  core::Tensor direction_, next_;  // of the largest group; these four in f32 or bf16
  core::Tensor gram_, square_;     // of the group with the largest squares of smaller sides
  core::Tensor whole_;             // of the largest tensor that the tensor axis cuts
  int64_t next_owner_ = 0;         // which rank takes the next matrix
};

}  // namespace sinter::train
