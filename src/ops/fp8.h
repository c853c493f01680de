// Linear layers in fp8: e4m3 forward, e5m2 gradients, sums in f32, results in the compute format.
//
// One scale per tensor, delayed: a step rounds by what the last steps saw (kernels::Fp8Scaling), so every tensor is
// read once. The first step has seen nothing and reads twice instead: once for the largest magnitude, once to round.
// Weights are rounded once a step, in both orders.
#pragma once
#include <unordered_map>
#include <vector>

#include "ops/context.h"

namespace sinter::ops {

class Fp8Layers {
 public:
  struct Layer {
    Tensor weight;             // (N, K) f8e4m3
    Tensor weight_transposed;  // (K, N) f8e4m3
    // Rows of scalings().
    Tensor x_scaling, weight_scaling, dy_scaling;
  };

  // For weights (N, K) in the compute format, N and K multiples of 16; others are left out. Keeps the pointers.
  Fp8Layers(core::Device device, const std::vector<const Parameter*>& weights);

  // The layer of this weight over `rows` rows; null when it is not one of ours or its sizes do not fit fp8 products.
  const Layer* find(const Parameter& weight, int64_t rows) const;
  // Before the first pass of a step: scales from what the steps before saw, then the weights in fp8.
  void begin_step(const kernels::KernelTable& kernels, core::Stream& stream);
  // Runs compute(output), a kernel call that rounds into fp8: twice while there is no scale yet, first without results.
  template <class Compute>
  void write(const kernels::KernelTable& kernels, core::Stream& stream, const kernels::Fp8Output& output,
             Compute&& compute) const {
    if (!is_calibrated_) {
      compute(kernels::Fp8Output{.scaling = output.scaling});
      kernels.fp8_rescale(stream, {output.scaling.reshape({1, kernels::Fp8Scaling::kSize})});
    }
    compute(output);
  }

  // (S, kSize) f32: all that a checkpoint must keep. Call resume() once it is loaded.
  const Tensor& scalings() const { return scalings_; }
  void resume();
  // Whether this step rounds by scales that steps before found: from then on every step makes the same calls.
  bool is_calibrated() const { return is_calibrated_ || weights_.empty(); }
  size_t num_layers() const { return layers_.size(); }
  size_t bytes() const;  // on the device

 private:
  std::vector<const Parameter*> weights_;
  std::unordered_map<const Parameter*, Layer> layers_;
  Tensor scalings_;
  Tensor values_;  // (n) f8e4m3: every weight in both orders
  bool has_seen_a_step_ = false, is_calibrated_ = false;
};

// The layer of a weight in this context; null: run it in the compute format.
const Fp8Layers::Layer* find_fp8(const Context& context, const Parameter& weight, int64_t rows);

// As linear(), for a layer that find_fp8 gave.
Variable fp8_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                    const Fp8Layers::Layer& layer);

// y = (silu(gate) * up) Wdown^T + bdown with [gate | up] = x Wup^T, without a bias there: of what lies between the
// products only [gate | up] and the gradient of the activation are held in the compute format.
struct Fp8MlpLayers {
  const Fp8Layers::Layer &up, &down;
};
struct MlpWeights;
Variable fp8_swiglu_mlp(const Context& context, const Variable& x, const MlpWeights& weights,
                        const Fp8MlpLayers& layers);

}  // namespace sinter::ops
