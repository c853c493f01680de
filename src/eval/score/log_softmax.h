// What scoring reads from a row of logits.
#pragma once
#include <cstddef>

namespace sinter::eval {

struct LogitRow {
  float max = 0;
  double log_sum = 0;  // log of the sum of exp(logit): a token's log-probability is its logit less this
};

// Over `count` logits, within 1e-6 of float64; NaN where a logit is.
LogitRow read_logits(const float* logits, size_t count);
// The first place of the largest logit.
size_t find_max(const float* logits, size_t count, float max);

}  // namespace sinter::eval
