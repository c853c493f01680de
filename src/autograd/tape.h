// The tape: a list of backward functions, run in reverse. It knows order, gradients' places and what to keep or
// recompute; it knows no maths (ops/ does).
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/weight_view.h"
#include "spec/parallel_spec.h"

namespace sinter::autograd {

using core::Tensor;

using spec::Recompute;  // what is kept between forward and backward

struct Parameter;

// Where the gradient of a value gathers; empty until the first consumer's backward has run.
struct GradSlot {
  Tensor grad;
  // The value ends with the addition of this bias, so the bias's gradient is the sum of `grad` over the rows. A
  // consumer whose kernel can sum while it writes grad does so and says it here; otherwise the value's own backward
  // does.
  Parameter* bias = nullptr;
  bool has_bias_gradient = false;
};

// How to make a dropped value again. Shared by all who saved it; the value is rebuilt at most once.
class Recipe {
 public:
  explicit Recipe(std::function<Tensor()> rebuild) : rebuild_(std::move(rebuild)) {}
  Tensor get() {
    if (!value_) value_ = rebuild_();
    return value_;
  }

 private:
  std::function<Tensor()> rebuild_;
  Tensor value_;
};

// A value kept for backward: the tensor itself, or its recipe.
class Saved {
 public:
  Saved() = default;
  explicit Saved(Tensor value) : value_(std::move(value)) {}
  explicit Saved(std::shared_ptr<Recipe> recipe) : recipe_(std::move(recipe)) {}
  Tensor get() const { return recipe_ ? recipe_->get() : value_; }

 private:
  Tensor value_;
  std::shared_ptr<Recipe> recipe_;
};

// A value of the forward pass. `slot` is null where no gradient is wanted.
struct Variable {
  Tensor value;
  std::shared_ptr<GradSlot> slot;
  std::shared_ptr<Recipe> recipe;  // set when the policy lets the value be dropped
  Saved save() const { return recipe ? Saved(recipe) : Saved(value); }
};

// A low-rank term beside a weight: rows [first_row, first_row + rows) of it get scale * b a added, and with a magnitude
// (DoRA) the sum is scaled row by row to that norm.
struct Adapter {
  Parameter *a = nullptr, *b = nullptr;  // (r, K), (rows, r); beside an embedding a is (V, r)
  Parameter* magnitude = nullptr;        // (rows), or null
  float scale = 1.0f;
  float dropout = 0.0f;  // of what a reads
  int64_t first_row = 0, rows = 0;
  size_t number = 0;  // among those of the weight
};

// A tensor as ops see it.
struct Parameter {
  std::string name;
  core::WeightView weight;    // compute format
  Tensor master;              // f32
  Tensor grad;                // f32 (matrices: or the compute format), or empty when frozen
  bool has_gradient = false;  // grad holds this step's sum so far; otherwise its content is stale
  Tensor grad_squares;        // (1) f32, or empty: where a kernel that writes grad may leave the sum of its squares
  bool has_squares = false;   // and it stands there. Whoever writes grad sets or clears this
  std::shared_ptr<core::DerivedWeight> derived;
  std::vector<Adapter> adapters;  // of a weight
  bool adapters_are_on = true;
  bool has_adapters() const { return adapters_are_on && !adapters.empty(); }
};

class Tape {
 public:
  // host: where inputs of checkpointed blocks wait for their backward; null: they stay where they are.
  explicit Tape(Recompute mode, core::Allocator* host = nullptr) : mode_(mode), host_(host) {}
  core::Allocator* host() const { return host_; }
  Recompute mode() const { return mode_; }
  // Adds a backward function; it is destroyed, with all it holds, right after it ran.
  void record(std::function<void()> backward) { steps_.push_back(std::move(backward)); }
  // Runs everything recorded, last first.
  void backward();

  // Pipelines that fill their bubbles: backward() leaves what only gives gradients of weights for backward_weights().
  void split_weights() { splits_weights_ = true; }
  bool splits_weights() const { return splits_weights_; }
  // From within a backward function: runs at once, or in backward_weights() in the order of these calls.
  void later(std::function<void()> work);
  void backward_weights();
  // A value whose gradient will gather in a new slot.
  static Variable make_variable(Tensor value) { return {std::move(value), std::make_shared<GradSlot>(), nullptr}; }

 private:
  Recompute mode_;
  core::Allocator* host_;
  std::vector<std::function<void()>> steps_, weights_;
  bool splits_weights_ = false;
};

}  // namespace sinter::autograd
