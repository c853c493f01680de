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
  // Allocates its state (zeros) on the store's device.
  Optimizer(const spec::OptimizerRecipe& recipe, models::ParameterStore& store);
  ~Optimizer();

  // One update from the store's gradients. control (2) f32 on the device as for the kernels: [0] multiplies every
  // gradient, [1] must be 1. Rounds the new masters into the compute copy.
  void update(const core::Tensor& control, double lr_factor);

  int64_t num_updates() const { return num_updates_; }
  void set_num_updates(int64_t count) { num_updates_ = count; }

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
    core::Tensor first, second;  // (count) f32: m and v, or velocity and nothing
  };
  void add_range(int64_t begin, int64_t end, bool decays);
  void add_states(const Range& range);

  const spec::OptimizerRecipe recipe_;
  models::ParameterStore& store_;
  std::vector<Range> ranges_;
  std::vector<State> states_;
  std::unique_ptr<Muon> muon_;
  int64_t num_updates_ = 0;
};

}  // namespace sinter::train
