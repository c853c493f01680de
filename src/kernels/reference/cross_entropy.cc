#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void cross_entropy(Stream&, const CrossEntropyArgs& args) {
  FloatView first(args.logits), last(args.last_logits), losses(args.losses), scale(args.scale), weights(args.weights);
  const int64_t split = args.logits.size(-1), apart = args.last_logits ? args.last_logits.size(-1) : 0;
  const int64_t vocab = split + apart;
  for_each_index(args.logits.rows(), [&](int64_t r) {
    auto logit = [&](int64_t v) { return v < split ? first[r * split + v] : last[r * apart + v - split]; };
    auto set_logit = [&](int64_t v, double x) {
      v < split ? first.set(r * split + v, x) : last.set(r * apart + v - split, x);
    };
    int64_t target = args.targets.data<int32_t>()[r];
    if (target < 0) {
      losses.set(r, 0);
      for (int64_t v = 0; args.write_gradient && v < vocab; ++v) set_logit(v, 0);
      return;
    }
    SINTER_CHECK(target < vocab, "[cross_entropy] target {} in row {}; the vocabulary has {} tokens", target, r, vocab);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t v = 0; v < vocab; ++v) largest = std::max(largest, logit(v));
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logit(v) - largest);
    double log_sum = largest + std::log(sum);
    const double weight = weights ? weights[r] : 1.0;
    losses.set(r, weight * (log_sum - logit(target)));
    for (int64_t v = 0; args.write_gradient && v < vocab; ++v) {
      double p = std::exp(logit(v) - log_sum);
      set_logit(v, (p - (v == target ? 1.0 : 0.0)) * scale[0] * weight);
    }
  });
}

}  // namespace sinter::kernels::reference
