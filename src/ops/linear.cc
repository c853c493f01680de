#include "ops/linear.h"

#include "base/error.h"
#include "kernels/fused.h"
#include "ops/adapter.h"
#include "ops/attention.h"
#include "ops/fp8.h"

namespace sinter::ops {
namespace {

// Puts the backward of y = x W^T + b (+ residual) on the tape.
void record_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias, const Tensor& groups,
                   const Variable& residual, const Variable& y) {
  if (!context.is_recording()) return;
  if (bias && bias->grad) y.slot->bias = bias;
  Variable input{{}, x.slot, nullptr}, added{{}, residual.slot, nullptr};
  const Shape dx_shape = x.value.shape();
  context.tape->record([context, saved = x.save(), input, added, slot = y.slot, &weight, bias, groups, dx_shape] {
    Tensor dy = take_gradient({{}, slot, nullptr}, "linear");
    Tensor dx = input.slot ? context.make(dx_shape, dy.dtype()) : Tensor();
    Parameter* left = slot->has_bias_gradient ? nullptr : bias;
    if (context.tape->splits_weights()) {
      linear_backward_input(context, dy, weight, groups, dx);
      // Others may add to dy before its turn comes.
      Tensor kept = context.make(dy.shape(), dy.dtype());
      context.kernels.axpby(context.stream, {.x = dy, .y = kept});
      context.tape->later([context, kept, saved, &weight, left, groups] {
        linear_backward(context, kept, saved.get(), weight, left, groups, {});
      });
    } else {
      linear_backward(context, dy, saved.get(), weight, left, groups, dx);
    }
    if (dx) accumulate(context, input, std::move(dx));
    if (added.slot) accumulate(context, added, std::move(dy));
  });
}

// Room for y = x W^T.
Tensor make_result(const Context& context, const Variable& x, const Parameter& weight) {
  const core::WeightView& w = weight.weight;
  SINTER_CHECK(x.value.size(-1) == w.columns(), "[linear] {}: x is {}, weight is ({}, {})", weight.name,
               x.value.shape().to_string(), w.rows(), w.columns());
  return context.make({x.value.rows(), w.rows()}, x.value.dtype());
}

Variable linear_impl(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                     const Tensor& groups, const Variable& residual) {
  Tensor y = make_result(context, x, weight);
  linear_forward(context, x.value, weight, bias, groups, y, residual.value);
  Variable result = context.make_variable(std::move(y));
  record_linear(context, x, weight, bias, groups, residual, result);
  return result;
}

}  // namespace

Variable linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                const Variable& residual) {
  if (weight.has_adapters()) {
    SINTER_CHECK(!residual.value, "[linear] {}: a product with adapters does not add a residual", weight.name);
    return adapted_linear(context, x, weight, bias);
  }
  if (const Fp8Layers::Layer* layer = find_fp8(context, weight, x.value.rows())) {
    SINTER_CHECK(!residual.value, "[linear] {}: a product in fp8 does not add a residual", weight.name);
    return fp8_linear(context, x, weight, bias, *layer);
  }
  return linear_impl(context, x, weight, bias, {}, residual);
}

Variable rotated_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias,
                        const Tensor& cos_sin, const spec::ModelSpec& spec) {
  if (weight.has_adapters() || find_fp8(context, weight, x.value.rows())) {
    Variable product = linear(context, x, weight, bias);
    rope(context, product.value, cos_sin, spec);
    return product;
  }
  Tensor y = make_result(context, x, weight);
  kernels::rotated_matmul(
      context.kernels, context.stream,
      {.product =
           {.a = x.value, .b = weight.weight, .c = y, .transpose_b = true, .bias = bias ? bias->weight.data : Tensor()},
       .rope = rope_args(spec, cos_sin, y)});
  Variable product = context.make_variable(std::move(y));
  record_linear(context, x, weight, bias, {}, {}, product);
  return product;
}

bool adds_residual(const Context& context, const Parameter& weight, int64_t rows) {
  return !weight.has_adapters() && !find_fp8(context, weight, rows);
}

Variable expert_linear(const Context& context, const Variable& x, Parameter& weight, const Tensor& group_offsets) {
  return linear_impl(context, x, weight, nullptr, group_offsets, {});
}

void linear_forward(const Context& context, const Tensor& x, const Parameter& weight, const Parameter* bias,
                    const Tensor& group_offsets, const Tensor& y, const Tensor& residual) {
  context.kernels.matmul(context.stream, {.a = x,
                                          .b = weight.weight,
                                          .c = y,
                                          .transpose_b = true,
                                          .bias = bias ? bias->weight.data : Tensor(),
                                          .addend = residual,
                                          .group_offsets = group_offsets});
}

void linear_backward_input(const Context& context, const Tensor& dy, const Parameter& weight,
                           const Tensor& group_offsets, const Tensor& dx) {
  if (dx) {
    context.kernels.matmul(context.stream, {.a = dy, .b = weight.weight, .c = dx, .group_offsets = group_offsets});
  }
}

void linear_backward(const Context& context, const Tensor& dy, const Tensor& x, Parameter& weight, Parameter* bias,
                     const Tensor& group_offsets, const Tensor& dx) {
  linear_backward_input(context, dy, weight, group_offsets, dx);
  const bool has_bias_gradient = bias && bias->grad;
  if (weight.grad) {
    kernels::MatmulArgs product{.a = dy,
                                .b = {.data = x},
                                .c = weight.grad,
                                .transpose_a = true,
                                .accumulate = weight.has_gradient,
                                .group_offsets = group_offsets};
    if (!group_offsets) product.c_squares = weight.grad_squares;
    if (has_bias_gradient) {  // reading dy once may serve both gradients
      kernels::fused_matmul(context.kernels, context.stream,
                            {.product = product, .a_sums = bias->grad, .accumulate_sums = bias->has_gradient});
    } else {
      context.kernels.matmul(context.stream, product);
    }
    weight.has_gradient = true;
    weight.has_squares = static_cast<bool>(product.c_squares);
    if (has_bias_gradient) bias->has_gradient = true;
  } else if (has_bias_gradient) {
    context.kernels.column_sum(context.stream, {.x = dy, .y = bias->grad, .accumulate = bias->has_gradient});
    bias->has_gradient = true;
  }
}

}  // namespace sinter::ops
