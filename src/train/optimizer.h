// Optimizers over the flat parameter store: SGD, Adam, AdamW, and Muon for the blocks' matrices with AdamW for the
// rest.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/parameter_store.h"
#include "parallel/mesh.h"
#include "spec/recipe.h"

namespace sinter::train {

class Muon;

// How a store divides state among ranks (models/segments.h), and who the others are.
models::Division division_of(const parallel::Mesh& mesh, const spec::ModelSpec& model);
struct OptimizerShard {
  comm::Communicator* group = nullptr;   // the ranks of the parts, in order; null: nothing is divided
  int64_t copy = 0, copies = 1;          // of the ranks that keep the same part
  int64_t holder = 0, holders = 1;       // of the ranks that hold the same tensors
  comm::Communicator* tensor = nullptr;  // the ranks that cut matrices; null: none are
  // Of experts that other ranks of the data axis have others of; null: as all else.
  std::shared_ptr<const OptimizerShard> experts = nullptr;
  const OptimizerShard& of(const spec::ParameterSpec& info) const {
    return experts && info.expert_axis >= 0 ? *experts : *this;
  }
};
OptimizerShard optimizer_shard(const parallel::Mesh& mesh);

class Optimizer {
 public:
  // Allocates its state (zeros) on the store's device. `seed` keys the stochastic rounding of bf16 states.
  Optimizer(const spec::OptimizerRecipe& recipe, models::ParameterStore& store, uint64_t seed = 0,
            const OptimizerShard& shard = {});
  ~Optimizer();

  // One update from the store's gradients, if control says so. control as for the kernels, on the device: of
  // kControlSize as step_control writes it, or (2) without Muon, where updates are counted here. Rounds the new masters
  // into the compute copy, and brings those of other parts here. `step` (from 0) keys random numbers, so that a
  // resumed run draws the same.
  void update(const core::Tensor& control, double lr_factor, int64_t step = 0);

  // After this rank's masters were set: rounds them and brings the weights of other parts here.
  void publish();

  // A stretch of state that belongs to one stored tensor, element for element.
  struct State {
    std::string kind;  // "m", "v", "velocity", "momentum"
    size_t slot = 0;   // index in the store
    core::Tensor values;
    int64_t first = 0;  // their first element in the tensor
  };
  // The scales of a stored tensor's 8-bit codes: "m_scales", "v_scales". Such tensors are whole on every rank.
  struct Scales {
    std::string kind;
    size_t slot = 0;
    core::Tensor values;  // (blocks) f32
  };
  const std::vector<Scales>& scales() const { return scales_; }
  const OptimizerShard& shard() const { return shard_; }
  const std::vector<State>& states() const { return states_; }
  size_t state_bytes() const;

 private:
  // A stretch of the flat buffers whose tensors are treated alike.
  struct Range {
    int64_t begin = 0, count = 0;
    bool decays = false;
    core::Tensor first, second;                // (count) f32, bf16 or codes: m and v, or velocity and nothing
    core::Tensor first_scales, second_scales;  // of codes: (blocks) f32
  };
  bool has_codes() const { return recipe_.states == core::DType::u8; }
  void exchange();
  void add_range(int64_t begin, int64_t end, bool decays);
  void add_states(const Range& range);

  const spec::OptimizerRecipe recipe_;
  const uint64_t seed_;
  models::ParameterStore& store_;
  std::vector<Range> ranges_;
  std::vector<State> states_;
  std::vector<Scales> scales_;
  core::Tensor m_map_, v_map_;  // (256) f32, of codes
  std::unique_ptr<Muon> muon_;
  const OptimizerShard shard_;
  int64_t num_calls_ = 0;  // of update
};

}  // namespace sinter::train
