#include "ops/mlp.h"

#include "base/error.h"
#include "kernels/fused.h"
#include "ops/activation.h"
#include "ops/fp8.h"
#include "ops/linear.h"
#include "ops/norm.h"

namespace sinter::ops {

namespace {

bool has_adapters(const MlpWeights& weights) { return weights.up.has_adapters() || weights.down.has_adapters(); }

Variable mlp_in_parts(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                      bool gated, const Variable& residual) {
  Variable up = linear(context, x, weights.up, weights.up_bias);  // (R, F) or (R, 2F)
  Variable act = activation(context, up, kind, gated);            // (R, F)
  return linear(context, act, weights.down, weights.down_bias, residual);
}

// Through kernels/fused.h, which has a kernel for the activation in its products or does them one after the other.
Variable fused_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                   bool gated, const Variable& residual) {
  const int64_t R = x.value.rows(), up_rows = weights.up.weight.rows(), F = gated ? up_rows / 2 : up_rows;
  const int64_t C = weights.down.weight.rows();
  // What is kept of the activation for backward: its input, or the slope there, which is all that backward needs where
  // it does not apply the activation again. In f32 it is the input, so that all modes of recompute give the same bits.
  const bool keeps_slope = context.is_recording() && !context.may_drop() && !gated && x.value.dtype() != DType::f32;
  Tensor kept = context.make({R, up_rows}, x.value.dtype());
  Tensor act = context.make({R, F}, x.value.dtype());
  const kernels::MatmulArgs up{.a = x.value,
                               .b = weights.up.weight,
                               .c = act,
                               .transpose_b = true,
                               .bias = weights.up_bias ? weights.up_bias->weight.data : Tensor()};
  kernels::fused_matmul(context.kernels, context.stream,
                        {.product = up,
                         .activation = kind,
                         .pre_activation = keeps_slope ? Tensor() : kept,
                         .slope = keeps_slope ? kept : Tensor(),
                         .gated = gated});
  Tensor y = context.make({R, C}, x.value.dtype());
  linear_forward(context, act, weights.down, weights.down_bias, {}, y, residual.value);
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  if (weights.down_bias && weights.down_bias->grad) result.slot->bias = weights.down_bias;
  if (context.may_drop()) act = Tensor();  // backward applies the activation again
  Variable input{{}, x.slot, nullptr}, added{{}, residual.slot, nullptr};
  const Shape dx_shape = x.value.shape();
  context.tape->record([context, saved = x.save(), input, added, slot = result.slot, weights, kind, gated, keeps_slope,
                        kept = std::move(kept), act = std::move(act), R, F, dx_shape]() mutable {
    Tensor dy = take_gradient({{}, slot, nullptr}, "mlp");
    if (!act) {
      act = context.make({R, F}, kept.dtype());
      context.kernels.activation_forward(context.stream, {.kind = kind, .gated = gated, .x = kept, .y = act});
    }
    Parameter* down_bias = slot->has_bias_gradient ? nullptr : weights.down_bias;
    const bool splits = context.tape->splits_weights();
    if (splits) {  // others may add to dy before its turn comes
      Tensor later = context.make(dy.shape(), dy.dtype());
      context.kernels.axpby(context.stream, {.x = dy, .y = later});
      context.tape->later([context, later, act, weights, down_bias] {
        linear_backward(context, later, act, weights.down, down_bias, {}, {});
      });
    } else {
      linear_backward(context, dy, act, weights.down, down_bias, {}, {});
    }
    act = Tensor();
    Tensor dpre = context.make(kept.shape(), kept.dtype());
    // Without a gate the sums of dpre, the bias's gradient, come on the way.
    Parameter* bias_left = gated ? weights.up_bias : nullptr;
    Tensor bias_grad = weights.up_bias && !gated ? weights.up_bias->grad : Tensor();
    if (bias_grad) begin_gradient(context, *weights.up_bias);
    kernels::FusedMatmulArgs down{.product = {.a = dy, .b = weights.down.weight, .c = dpre},
                                  .activation = kind,
                                  .activation_input = keeps_slope ? Tensor() : kept,
                                  .slope_input = keeps_slope ? kept : Tensor(),
                                  .c_sums = bias_grad,
                                  .gated = gated};
    if (gated) down.product.c = context.make({R, F}, kept.dtype()), down.gate_up_gradient = dpre;
    kernels::fused_matmul(context.kernels, context.stream, down);
    down = {}, kept = Tensor();
    Tensor dx = input.slot ? context.make(dx_shape, dy.dtype()) : Tensor();
    if (splits) {
      linear_backward_input(context, dpre, weights.up, {}, dx);
      context.tape->later([context, dpre, saved, weights, bias_left] {
        linear_backward(context, dpre, saved.get(), weights.up, bias_left, {}, {});
      });
    } else {
      linear_backward(context, dpre, saved.get(), weights.up, bias_left, {}, dx);
    }
    if (dx) accumulate(context, input, std::move(dx));
    if (added.slot) accumulate(context, added, std::move(dy));
  });
  return result;
}

}  // namespace

Variable gated_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                   const Variable& residual) {
  if (has_adapters(weights)) return mlp_in_parts(context, x, weights, kind, true, residual);
  const Fp8Layers::Layer *up = find_fp8(context, weights.up, x.value.rows()),
                         *down = find_fp8(context, weights.down, x.value.rows());
  if (up && down && kind == spec::Activation::silu && !weights.up_bias) {
    SINTER_CHECK(!residual.value, "[mlp] {}: a product in fp8 does not add a residual", weights.down.name);
    return fp8_swiglu_mlp(context, x, weights, {*up, *down});
  }
  if (up || down) return mlp_in_parts(context, x, weights, kind, true, residual);
  return fused_mlp(context, x, weights, kind, true, residual);
}

Variable plain_mlp(const Context& context, const Variable& x, const MlpWeights& weights, spec::Activation kind,
                   const Variable& residual) {
  if (has_adapters(weights) || find_fp8(context, weights.up, x.value.rows()) ||
      find_fp8(context, weights.down, x.value.rows())) {
    return mlp_in_parts(context, x, weights, kind, false, residual);
  }
  return fused_mlp(context, x, weights, kind, false, residual);
}

}  // namespace sinter::ops
