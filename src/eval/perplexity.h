// How well a model predicts a text, by the rolling rule of lm-evaluation-harness: every token is predicted once,
// windows do not overlap but for one token of context, and the first token follows BOS (or EOS where there is no BOS).
// Where there is neither, the first token is context only, as in Hugging Face's loss of a text.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "models/open_model.h"

namespace sinter::eval {

struct PerplexityOptions {
  int64_t context = 0;     // longest window; 0 = the model's trained length
  int64_t stride = 0;      // tokens predicted per window; 0 = all of it. Smaller: more context, more work
  int32_t separator = -1;  // a token that ends documents: what follows it is predicted as a text of its own; -1: none
  int64_t batch_tokens = 4096;
};

struct PerplexityResult {
  int64_t num_documents = 0;
  int64_t num_tokens = 0, num_words = 0, num_bytes = 0;
  double negative_log_likelihood = 0;  // sum over tokens, in nats
  double seconds = 0;
  double token_perplexity() const;
  double word_perplexity() const;
  double byte_perplexity() const;
  double bits_per_byte() const;
};

// `prefix_token` is put before the text (each document of it); -1: nothing, and the first token is not predicted (nor
// counted).
// `progress` (may be empty) gets (tokens done, tokens in all). Throws base::Error when a loss is not finite.
PerplexityResult perplexity(const models::OpenModel& model, const std::vector<int32_t>& tokens, int32_t prefix_token,
                            const PerplexityOptions& options,
                            const std::function<void(int64_t, int64_t)>& progress = {});
// Words by white space, and bytes, of the text the tokens came from.
void count_text(const std::string& text, PerplexityResult& result);

}  // namespace sinter::eval
