#include "ops/norm.h"

#include "base/error.h"

namespace sinter::ops {

NormResult norm(const Context& context, const Variable& x, const Variable& residual, Parameter& weight, Parameter* bias,
                spec::NormKind kind, float eps) {
  const int64_t R = x.value.rows(), C = x.value.size(-1);
  SINTER_CHECK(weight.master.num_elements() == C, "[norm] {}: weight has {} elements, rows have {}", weight.name,
               weight.master.num_elements(), C);
  const bool has_residual = static_cast<bool>(residual.value);
  const bool is_layer = kind == spec::NormKind::layer;
  Tensor sum = has_residual ? context.make({R, C}, x.value.dtype()) : x.value;
  Tensor y = context.make({R, C}, x.value.dtype());
  Tensor mean = is_layer ? context.make({R}, DType::f32) : Tensor();
  Tensor rstd = context.make({R}, DType::f32);
  context.kernels.norm_forward(context.stream, {.kind = kind,
                                                .eps = eps,
                                                .x = x.value,
                                                .residual = residual.value,
                                                .weight = weight.master,
                                                .bias = bias ? bias->master : Tensor(),
                                                .sum = sum,
                                                .y = y,
                                                .mean = mean,
                                                .rstd = rstd});
  NormResult result{context.make_variable(y), context.make_variable(sum)};
  if (!context.is_recording()) return result;
  if (context.may_drop()) {
    // Made again from the stream, which is kept anyway. The statistics come out the same, so a scratch pair suffices.
    result.y.remade =
        std::make_shared<autograd::Rematerialized>([context, sum, &weight, bias, kind, eps, R, C, is_layer] {
          Tensor again = context.make({R, C}, sum.dtype());
          context.kernels.norm_forward(context.stream, {.kind = kind,
                                                        .eps = eps,
                                                        .x = sum,
                                                        .weight = weight.master,
                                                        .bias = bias ? bias->master : Tensor(),
                                                        .y = again,
                                                        .mean = is_layer ? context.make({R}, DType::f32) : Tensor(),
                                                        .rstd = context.make({R}, DType::f32)});
          return again;
        });
  }
  Variable x_place = x.place(), residual_place = residual.place();
  context.tape->record([context, x_place, residual_place, has_residual, y_slot = result.y.slot,
                        sum_slot = result.sum.slot, sum, mean, rstd, &weight, bias, kind] {
    Tensor dy = take_gradient(y_slot, "norm");
    Tensor dsum = std::move(sum_slot->grad);  // empty when nothing used the stream past the norm
    begin_gradient(context, weight);
    if (bias) begin_gradient(context, *bias);
    Tensor ds = dsum ? dsum : dy;  // written in place of whichever arrived
    autograd::GradSlot* place = x_place.slot.get();
    Parameter* x_bias = place && !place->grad ? place->bias : nullptr;
    if (x_bias) {
      begin_gradient(context, *x_bias);
      place->has_bias_gradient = true;
    }
    context.kernels.norm_backward(context.stream, {.kind = kind,
                                                   .dy = dy,
                                                   .dsum = dsum,
                                                   .s = sum,
                                                   .weight = weight.master,
                                                   .mean = mean,
                                                   .rstd = rstd,
                                                   .ds = ds,
                                                   .dweight = weight.grad.tensor(),
                                                   .dbias = bias ? bias->grad.tensor() : Tensor(),
                                                   .ds_sums = x_bias ? x_bias->grad.tensor() : Tensor()});
    // The gradient of a sum goes to both terms, as one tensor: x was made after the residual, so its backward runs (and
    // only reads) before the residual's owner writes in place.
    if (has_residual) accumulate(context, residual_place, ds);
    accumulate(context, x_place, std::move(ds));
  });
  return result;
}

Tensor norm_in_f32(const Context& context, const Tensor& x, const Tensor& residual, const Parameter& weight,
                   const Parameter* bias, spec::NormKind kind, float eps) {
  Tensor sum = context.make(x.shape(), DType::f32), y = context.make(x.shape(), DType::f32);
  context.kernels.axpby(context.stream, {.x = x, .y = sum});
  context.kernels.axpby(context.stream, {.x = residual, .y = sum, .beta = 1.0f});
  const bool is_layer = kind == spec::NormKind::layer;
  context.kernels.norm_forward(context.stream, {.kind = kind,
                                                .eps = eps,
                                                .x = sum,
                                                .weight = weight.master,
                                                .bias = bias ? bias->master : Tensor(),
                                                .y = y,
                                                .mean = is_layer ? context.make({x.rows()}, DType::f32) : Tensor(),
                                                .rstd = context.make({x.rows()}, DType::f32)});
  return y;
}

Variable head_norm(const Context& context, const Variable& qkv, Parameter& q_weight, Parameter& k_weight,
                   const spec::ModelSpec& spec) {
  const int64_t T = qkv.value.rows(), H = spec.num_heads, K = spec.num_kv_heads, D = spec.head_dim;
  Tensor out = context.make(qkv.value.shape(), qkv.value.dtype());
  Tensor rstd = context.make({T, H + K}, DType::f32);
  context.kernels.head_norm_forward(context.stream, {.eps = spec.norm_eps,
                                                     .num_heads = H,
                                                     .num_kv_heads = K,
                                                     .head_dim = D,
                                                     .qkv = qkv.value,
                                                     .q_weight = q_weight.master,
                                                     .k_weight = k_weight.master,
                                                     .out = out,
                                                     .rstd = rstd});
  Variable result = context.make_variable(std::move(out));
  if (!context.is_recording()) return result;
  context.tape->record([context, qkv, slot = result.slot, rstd, &q_weight, &k_weight, H, K, D] {
    Tensor dout = take_gradient(slot, "head_norm");
    begin_gradient(context, q_weight);
    begin_gradient(context, k_weight);
    context.kernels.head_norm_backward(context.stream, {.num_heads = H,
                                                        .num_kv_heads = K,
                                                        .head_dim = D,
                                                        .dout = dout,
                                                        .qkv = qkv.value,
                                                        .q_weight = q_weight.master,
                                                        .k_weight = k_weight.master,
                                                        .rstd = rstd,
                                                        .dqkv = dout,
                                                        .dq_weight = q_weight.grad.tensor(),
                                                        .dk_weight = k_weight.grad.tensor()});
    accumulate(context, qkv, std::move(dout));
  });
  return result;
}

}  // namespace sinter::ops
