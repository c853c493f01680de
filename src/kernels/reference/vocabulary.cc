// A vocabulary shared by several ranks, and dropout of rows that are not neighbours.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void vocab_embedding_forward(Stream&, const VocabEmbeddingForwardArgs& args) {
  FloatView table(args.table), y(args.y);
  const int64_t C = args.y.size(-1), V = args.table.size(0);
  for (int64_t t = 0; t < args.tokens.num_elements(); ++t) {
    const int64_t row = args.tokens.data<int32_t>()[t] - args.first;
    for (int64_t c = 0; c < C; ++c) y.set(t * C + c, row >= 0 && row < V ? table[row * C + c] : 0.0);
  }
}

void vocab_embedding_backward(Stream&, const VocabEmbeddingBackwardArgs& args) {
  FloatView dtable(args.dtable), dy(args.dy);
  const int64_t C = args.dy.size(-1), V = args.dtable.size(0);
  for (int64_t t = 0; t < args.tokens.num_elements(); ++t) {
    const int64_t row = args.tokens.data<int32_t>()[t] - args.first;
    if (row < 0 || row >= V) continue;
    for (int64_t c = 0; c < C; ++c) dtable.add(row * C + c, dy[t * C + c]);
  }
}

void softmax_terms(Stream&, const SoftmaxTermsArgs& args) {
  FloatView logits(args.logits), terms(args.terms);
  const int64_t V = args.logits.size(-1);
  for_each_index(args.logits.rows(), [&](int64_t r) {
    const int64_t target = args.targets.data<int32_t>()[r] - args.first;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t v = 0; v < V; ++v) largest = std::max(largest, logits[r * V + v]);
    for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[r * V + v] - largest);
    terms.set(3 * r, largest);
    terms.set(3 * r + 1, sum);
    terms.set(3 * r + 2, target >= 0 && target < V ? logits[r * V + target] : 0.0);
  });
}

void softmax_loss(Stream&, const SoftmaxLossArgs& args) {
  FloatView terms(args.terms), lse(args.lse), losses(args.losses), weights(args.weights);
  const int64_t R = args.lse.num_elements(), P = args.terms.size(0);
  for_each_index(R, [&](int64_t r) {
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, target = 0;
    for (int64_t p = 0; p < P; ++p) largest = std::max(largest, terms[3 * (p * R + r)]);
    for (int64_t p = 0; p < P; ++p) {
      const int64_t at = 3 * (p * R + r);
      if (terms[at + 1] > 0) sum += terms[at + 1] * std::exp(terms[at] - largest);
      target += terms[at + 2];
    }
    const double log_sum = largest + std::log(sum);
    lse.set(r, log_sum);
    const double weight = weights ? weights[r] : 1.0;
    losses.set(r, args.targets.data<int32_t>()[r] < 0 ? 0.0 : weight * (log_sum - target));
  });
}

void softmax_gradient(Stream&, const SoftmaxGradientArgs& args) {
  FloatView logits(args.logits), lse(args.lse), scale(args.scale), weights(args.weights);
  const int64_t V = args.logits.size(-1);
  for_each_index(args.logits.rows(), [&](int64_t r) {
    const int64_t target = args.targets.data<int32_t>()[r];
    const double factor = weights ? scale[0] * weights[r] : scale[0];
    for (int64_t v = 0; v < V; ++v) {
      const double p = target < 0 ? 0.0 : std::exp(logits[r * V + v] - lse[r]) - (v == target - args.first ? 1.0 : 0.0);
      logits.set(r * V + v, p * factor);
    }
  });
}

void dropout_rows(Stream&, const RowDropoutArgs& args) {
  FloatView x(args.x), y(args.y);
  const int64_t C = args.x.size(-1);
  for_each_index(args.x.rows(), [&](int64_t r) {
    const uint64_t first = static_cast<uint64_t>(args.rows.data<int32_t>()[r]) * static_cast<uint64_t>(C);
    for (int64_t c = 0; c < C; ++c) {
      const bool is_kept = rng_of(args.key).uniform(first + static_cast<uint64_t>(c)) >= args.p;
      y.set(r * C + c, is_kept ? x[r * C + c] / (1.0 - args.p) : 0.0);
    }
  });
}

}  // namespace sinter::kernels::reference
