#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void cross_entropy(Stream&, const CrossEntropyArgs& args) {
  FloatView logits(args.logits), losses(args.losses), scale(args.scale);
  int64_t vocab = args.logits.size(-1);
  for_each_index(args.logits.rows(), [&](int64_t r) {
    int64_t target = args.targets.data<int32_t>()[r], first = r * vocab;
    if (target < 0) {
      losses.set(r, 0);
      for (int64_t v = 0; args.write_gradient && v < vocab; ++v) logits.set(first + v, 0);
      return;
    }
    SINTER_CHECK(target < vocab, "[cross_entropy] target {} in row {}; the vocabulary has {} tokens", target, r, vocab);
    double largest = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t v = 0; v < vocab; ++v) largest = std::max(largest, logits[first + v]);
    for (int64_t v = 0; v < vocab; ++v) sum += std::exp(logits[first + v] - largest);
    double log_sum = largest + std::log(sum);
    losses.set(r, log_sum - logits[first + target]);
    for (int64_t v = 0; args.write_gradient && v < vocab; ++v) {
      double p = std::exp(logits[first + v] - log_sum);
      logits.set(first + v, (p - (v == target ? 1.0 : 0.0)) * scale[0]);
    }
  });
}

}  // namespace sinter::kernels::reference
