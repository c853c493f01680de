#include "ops/embedding.h"

#include "ops/norm.h"

namespace sinter::ops {

Variable embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens, Parameter* positions) {
  const Tensor& table = tokens.weight.data;
  Tensor y = context.make({batch.num_tokens, table.size(1)}, table.dtype());
  context.kernels.embedding_forward(context.stream, {.tokens = batch.tokens,
                                                     .positions = batch.positions,
                                                     .table = table,
                                                     .position_table = positions ? positions->weight.data : Tensor(),
                                                     .y = y});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  context.tape->record([context, ids = batch.tokens, places = batch.positions, slot = result.slot, &tokens, positions] {
    Tensor dy = take_gradient({{}, slot, nullptr}, "embedding");
    // The gradient of a head that shares the table stands there already, perhaps with its sum of squares: few rows of
    // it change now.
    const bool is_first = !tokens.has_gradient, has_squares = tokens.grad_squares && (is_first || tokens.has_squares);
    if (is_first && has_squares) context.kernels.fill(context.stream, {tokens.grad_squares, 0.0f});
    begin_gradient(context, tokens);
    if (positions) begin_gradient(context, *positions);
    context.kernels.embedding_backward(context.stream,
                                       {.tokens = ids,
                                        .positions = places,
                                        .dy = dy,
                                        .dtable = tokens.grad,
                                        .dposition_table = positions ? positions->grad : Tensor(),
                                        .dtable_squares = has_squares ? tokens.grad_squares : Tensor()});
    tokens.has_squares = has_squares;
  });
  return result;
}

}  // namespace sinter::ops
