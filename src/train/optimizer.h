// Optimizers over the flat parameter store: SGD, Adam, AdamW, and Muon for the blocks' matrices with AdamW for the
// rest.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/parameter_store.h"
#include "spec/recipe.h"

namespace sinter::train {

class Muon;

class Optimizer {
 public:
  // Allocates its state (zeros) on the store's device. `seed` keys the stochastic rounding of bf16 states.
  Optimizer(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, uint64_t seed = 0);
  ~Optimizer();

  // One update from the store's gradients, if control says so. control as for the kernels, on the device: of
  // kControlSize as step_control writes it, or (2) without Muon, where updates are counted here. Rounds the new masters
  // into the compute copy. `step` (from 0) keys random numbers, so that a resumed run draws the same.
  void update(const core::Tensor& control, double lr_factor, int64_t step = 0);

  // A stretch of state that belongs to one stored tensor, element for element.
  struct State {
    std::string kind;  // "m", "v", "velocity", "momentum"
    size_t slot = 0;   // index in the store
    core::Tensor values;
  };
  const std::vector<State>& states() const { return states_; }
  size_t state_bytes() const;

 private:
  // A stretch of the flat buffers whose tensors are treated alike.
  struct Range {
    int64_t begin = 0, count = 0;
    bool decays = false;
    core::Tensor first, second;  // (count) f32 or bf16: m and v, or velocity and nothing
  };
  void add_range(int64_t begin, int64_t end, bool decays);
  void add_states(const Range& range);

  const spec::OptimizerRecipe recipe_;
  const uint64_t seed_;
  models::ParameterStore& store_;
  std::vector<Range> ranges_;
  std::vector<State> states_;
  std::unique_ptr<Muon> muon_;
  int64_t num_calls_ = 0;  // of update
};

}  // namespace sinter::train
