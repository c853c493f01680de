// Low-rank adapters beside weights: y = x W^T + scale (x a^T) b^T, of which only a and b (and a magnitude, DoRA) train.
#pragma once
#include "ops/context.h"

namespace sinter::ops {

// linear() (linear.h) with a weight that has adapters; a residual is not added. With a magnitude m, the rows of the
// weight that it stands beside are (W + scale b a) scaled to the norms m; the norms before count as constants.
Variable adapted_linear(const Context& context, const Variable& x, Parameter& weight, Parameter* bias);

// What the adapters of an embedding add to y (T, C) in place, and its gradient for dy (T, C).
struct EmbeddingTerms {
  std::vector<Tensor> rows;  // of every adapter: rows of a (T, r)
};
EmbeddingTerms add_embedding_terms(const Context& context, const Tensor& tokens, const Parameter& table,
                                   const Tensor& y);
void embedding_terms_backward(const Context& context, const Tensor& tokens, const Parameter& table,
                              const EmbeddingTerms& terms, const Tensor& dy);

// norms (rows) f32 of the rows of W + scale b a.
Tensor adapted_norms(const Context& context, const Parameter& weight, const autograd::Adapter& adapter);

}  // namespace sinter::ops
