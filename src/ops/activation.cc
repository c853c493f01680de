#include "ops/activation.h"

namespace sinter::ops {

Variable activation(const Context& context, const Variable& x, spec::Activation kind, bool gated) {
  const int64_t R = x.value.rows(), F = x.value.size(-1) / (gated ? 2 : 1);
  auto forward = [context, kind, gated, R, F](const Tensor& input) {
    Tensor y = context.make({R, F}, input.dtype());
    context.kernels.activation_forward(context.stream, {.kind = kind, .gated = gated, .x = input, .y = y});
    return y;
  };
  Variable result = context.make_variable(forward(x.value));
  if (!context.is_recording()) return result;
  if (context.may_drop()) {
    result.remade = std::make_shared<autograd::Rematerialized>([forward, input = x.value] { return forward(input); });
  }
  context.tape->record([context, x, slot = result.slot, kind, gated] {
    Tensor dy = take_gradient(slot, "activation");
    Tensor dx = context.make(x.value.shape(), x.value.dtype());
    context.kernels.activation_backward(context.stream,
                                        {.kind = kind, .gated = gated, .dy = dy, .x = x.value, .dx = dx});
    accumulate(context, x, std::move(dx));
  });
  return result;
}

Variable dropout(const Context& context, const Variable& x, float p, RandomKey key, uint64_t first_index) {
  if (p == 0.0f) return x;
  Tensor y = context.make(x.value.shape(), x.value.dtype());
  context.kernels.dropout(context.stream, {.p = p, .key = key, .first_index = first_index, .x = x.value, .y = y});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([context, place, slot = result.slot, p, key, first_index] {
    Tensor dy = take_gradient(slot, "dropout");
    Tensor dx = context.make(dy.shape(), dy.dtype());  // dy may be shared with the residual stream: not in place
    context.kernels.dropout(context.stream, {.p = p, .key = key, .first_index = first_index, .x = dy, .y = dx});
    accumulate(context, place, std::move(dx));
  });
  return result;
}

Variable dropout_rows(const Context& context, const Variable& x, float p, RandomKey key, const Tensor& rows) {
  if (p == 0.0f) return x;
  Tensor y = context.make(x.value.shape(), x.value.dtype());
  context.kernels.dropout_rows(context.stream, {.p = p, .key = key, .rows = rows, .x = x.value, .y = y});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable place = x.place();
  context.tape->record([context, place, slot = result.slot, p, key, rows] {
    Tensor dy = take_gradient(slot, "dropout_rows");
    Tensor dx = context.make(dy.shape(), dy.dtype());
    context.kernels.dropout_rows(context.stream, {.p = p, .key = key, .rows = rows, .x = dy, .y = dx});
    accumulate(context, place, std::move(dx));
  });
  return result;
}

Variable add(const Context& context, const Variable& x, const Variable& residual) {
  Tensor y = context.make(x.value.shape(), x.value.dtype());
  context.kernels.axpby(context.stream, {.x = residual.value, .y = y});
  context.kernels.axpby(context.stream, {.x = x.value, .y = y, .beta = 1.0f});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  Variable x_place = x.place(), residual_place = residual.place();
  context.tape->record([context, x_place, residual_place, slot = result.slot] {
    Tensor dy = take_gradient(slot, "add");
    // One tensor for both terms: the backward of x runs, and only reads, before that of the residual.
    accumulate(context, residual_place, dy);
    accumulate(context, x_place, std::move(dy));
  });
  return result;
}

}  // namespace sinter::ops
