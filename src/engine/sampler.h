// Choosing the next token from logits. The noise is Gumbel's, keyed by (seed, position, token): a request draws the
// same numbers whatever else is in its batch, and a filter that drops other tokens does not change the choice.
#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace sinter::engine {

// "Don't repeat yourself": a token that would continue a repetition of `allowed_length` tokens or more loses
// multiplier * base ^ (length - allowed_length).
struct DryOptions {
  float multiplier = 0.0f;  // 0 = off
  float base = 1.75f;
  int64_t allowed_length = 2;
  int64_t range = 0;              // how many of the last tokens are looked at; 0 = all
  std::vector<int32_t> breakers;  // repetitions do not reach across these tokens
};

// Every default is neutral: the model's own distribution.
struct SamplingOptions {
  float temperature = 1.0f;  // 0 = greedy
  int64_t top_k = 0;         // 0 = all
  float top_p = 1.0f;        // smallest set of the likeliest tokens whose probability reaches this
  float min_p = 0.0f;        // drop tokens below this share of the likeliest one's probability
  uint64_t seed = 0;
  float typical_p = 1.0f;  // smallest set of the tokens of most typical surprise whose probability reaches this
  float repetition_penalty = 1.0f;  // of prompt and output: logits above 0 are divided by it, others multiplied
  float presence_penalty = 0.0f;    // taken from the logit of a token that is in the output
  float frequency_penalty = 0.0f;   // likewise, times how often it is there
  DryOptions dry;
  std::vector<std::pair<int32_t, float>> logit_bias;  // (token, added to its logit)
  std::vector<int32_t> allowed_tokens;                // only these; empty: all
  std::vector<std::vector<int32_t>> bad_words;        // these sequences of tokens never come
};

// Throws base::UsageError naming the option that makes no sense. `vocab_size` 0: tokens are not looked at.
void check_sampling(const SamplingOptions& options, int64_t vocab_size = 0);

// What is said of logits that are NaN or infinite.
inline constexpr const char* kLogitsNotFinite =
    "the logits are not finite: the model's weights are damaged or its training diverged; `sinter inspect MODEL "
    "--values` counts the weights that are NaN or infinite";

// What a choice depends on beside the logits.
struct SamplingHistory {
  std::span<const int32_t> tokens;  // prompt and output
  int64_t prompt_length = 0;        // how many of them are the prompt's
  std::span<const uint32_t> mask;   // bits over the vocabulary, or empty: all may come (TokenMask::mask)
  std::span<const int32_t> banned;  // further tokens that may not come: stop tokens before the least length
};

// Memory that is used again from call to call; one per thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<int32_t> counts, order;
  std::vector<std::pair<float, int32_t>> candidates;
};

// Order: bias; what may not come is dropped (mask, allowed, banned, bad words); penalties (repetition, presence,
// frequency, DRY); temperature; top-k, typical, top-p, min-p; then the noise. The position is that of the token to
// choose. Ties go to the lower token. -1: no token may come. Throws base::Error when a logit is NaN or none is finite.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position,
                     const SamplingHistory& history, SamplerScratch& scratch);
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint64_t position);

}  // namespace sinter::engine
