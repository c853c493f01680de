#include "ops/embedding.h"

#include "ops/adapter.h"
#include "ops/norm.h"

namespace sinter::ops {
namespace {

void look_up(const Context& context, const core::RaggedBatch& batch, const Parameter& tokens,
             const Parameter* positions, const Tensor& y) {
  const Tensor position_table = positions ? positions->weight.data : Tensor();
  if (tokens.weight.is_plain()) {
    return context.kernels.embedding_forward(context.stream, {.tokens = batch.tokens,
                                                              .positions = batch.positions,
                                                              .table = tokens.weight.data,
                                                              .position_table = position_table,
                                                              .y = y});
  }
  context.kernels.dequantize(context.stream, {.weight = tokens.weight, .rows = batch.tokens, .y = y});
  if (!positions) return;
  Tensor added = context.make(y.shape(), y.dtype());
  context.kernels.embedding_forward(context.stream, {.tokens = batch.positions, .table = position_table, .y = added});
  context.kernels.axpby(context.stream, {.x = added, .y = y, .alpha = 1.0f, .beta = 1.0f});
}

}  // namespace

Variable embedding(const Context& context, const core::RaggedBatch& batch, Parameter& tokens, Parameter* positions) {
  Tensor y = context.make({batch.num_tokens, tokens.weight.columns()}, context.compute);
  look_up(context, batch, tokens, positions, y);
  EmbeddingTerms terms;
  if (tokens.has_adapters()) terms = add_embedding_terms(context, batch.tokens, tokens, y);
  Variable result = context.make_variable(std::move(y));
  if (!context.is_recording()) return result;
  context.tape->record([context, ids = batch.tokens, places = batch.positions, slot = result.slot, &tokens, positions,
                        terms = std::move(terms)] {
    Tensor dy = take_gradient(slot, "embedding");
    if (!terms.rows.empty()) embedding_terms_backward(context, ids, tokens, terms, dy);
    if (!tokens.grad && !(positions && positions->grad)) return;  // frozen
    // The gradient of a head that shares the table stands there already, perhaps with its sum of squares: few rows of
    // it change now.
    const bool updates_squares = tokens.grad.can_update_squares();
    if (!tokens.grad.accumulates() && updates_squares)
      context.kernels.fill(context.stream, {tokens.grad.squares(), 0.0f});
    begin_gradient(context, tokens);
    if (positions) begin_gradient(context, *positions);
    context.kernels.embedding_backward(context.stream,
                                       {.tokens = ids,
                                        .positions = places,
                                        .dy = dy,
                                        .dtable = tokens.grad.tensor(),
                                        .dposition_table = positions ? positions->grad.tensor() : Tensor(),
                                        .dtable_squares = updates_squares ? tokens.grad.squares() : Tensor()});
    if (updates_squares) tokens.grad.wrote_with_squares();
  });
  return result;
}

}  // namespace sinter::ops
