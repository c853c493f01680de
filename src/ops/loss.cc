#include "ops/loss.h"

#include "kernels/fused.h"
#include "spec/parameters.h"

namespace sinter::ops {

void linear_cross_entropy(const Context& context, const Variable& x, Parameter& weight, const Tensor& targets,
                          const Tensor& scale, const Tensor& losses, const Tensor& weights) {
  const int64_t T = x.value.rows(), V = weight.weight.rows();
  const int64_t chunk = spec::loss_chunk_rows(T, V, static_cast<int64_t>(base::dtype_bytes(x.value.dtype())));
  Tensor logits = context.make({chunk, V}, x.value.dtype());
  Tensor dx = context.is_recording() ? context.make(x.value.shape(), x.value.dtype()) : Tensor();
  kernels::linear_cross_entropy(context.kernels, context.stream,
                                {.x = x.value,
                                 .weight = weight.weight,
                                 .targets = targets,
                                 .losses = losses,
                                 .scale = scale,
                                 .logits = logits,
                                 .dx = dx,
                                 .dweight = dx ? weight.grad.tensor() : Tensor(),
                                 .accumulate = weight.grad.accumulates(),
                                 .dweight_squares = weight.grad.squares(),
                                 .weights = weights});
  if (context.is_recording()) {
    if (weight.grad) weight.grad.wrote_with_squares();
    Variable place = x.place();
    context.tape->record([context, place, dx] { accumulate(context, place, dx); });
  }
}

}  // namespace sinter::ops
