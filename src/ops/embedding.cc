#include "ops/embedding.h"

#include "ops/norm.h"

namespace sinter::ops {

Variable embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens, Parameter* positions) {
  const Tensor& table = tokens.weight.data;
  Tensor y = context.make({batch.num_tokens, table.size(1)}, table.dtype());
  context.kernels.embedding_forward(context.stream,
                                    {.tokens = batch.tokens, .positions = batch.positions, .table = table,
                                     .position_table = positions ? positions->weight.data : Tensor(), .y = y});
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  context.tape->record([context, ids = batch.tokens, places = batch.positions, slot = result.slot, &tokens, positions] {
    Tensor dy = take_gradient({{}, slot, nullptr}, "embedding");
    begin_gradient(context, tokens);
    if (positions) begin_gradient(context, *positions);
    context.kernels.embedding_backward(context.stream, {.tokens = ids, .positions = places, .dy = dy, .dtable = tokens.grad,
                                                        .dposition_table = positions ? positions->grad : Tensor()});
  });
  return result;
}

}  // namespace sinter::ops
