// Choosing the next token from logits. Random numbers are keyed by (seed, position): a request draws the same ones
// whatever else is in its batch.
#pragma once
#include <cstdint>
#include <span>

namespace sinter::engine {

struct SamplingOptions {
  float temperature = 1.0f;  // 0 = greedy
  int64_t top_k = 0;         // 0 = all
  float top_p = 1.0f;        // smallest set of the likeliest tokens whose probability reaches this
  float min_p = 0.0f;        // drop tokens below this share of the likeliest one's probability
  uint64_t seed = 0;
};

// Throws base::UsageError naming the option that makes no sense.
void check_sampling(const SamplingOptions& options);

// Filters apply in the order temperature, top-k, top-p, min-p. Ties go to the lower token. Throws base::Error when a
// logit is NaN or none is finite.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position);

}  // namespace sinter::engine
