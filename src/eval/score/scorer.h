// Log-likelihoods of continuations. Requests are sorted, those with the same beginning share its keys in a paged cache,
// equal inputs are computed once, and logits exist only for the tokens that are scored.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "core/ragged_batch.h"
#include "eval/score/encode.h"
#include "models/transformer.h"

namespace sinter::eval {

struct Score {
  double log_likelihood = 0;
  bool is_greedy = false;  // every token was the most likely one (the first of equals)
};

struct ScorerOptions {
  int64_t max_length = 0;       // longest input; 0 = the model's positions
  int64_t batch_tokens = 2048;  // computed at once
  int64_t block_size = 8;       // tokens of a cache block: what two requests share is a multiple of it
  bool shares_prefixes = true;
};

struct ScorerStats {
  int64_t input_tokens = 0;     // of all requests
  int64_t computed_tokens = 0;  // that went through the model
  int64_t logit_rows = 0;
  double seconds = 0;
};

class Scorer {
 public:
  Scorer(const models::Transformer& model, const ScorerOptions& options);
  // `on_score` gets (request, score) as they come, in an order of the scorer's own. Throws base::Error where a
  // continuation is longer than the model's input or a token is outside the vocabulary.
  using OnScore = std::function<void(size_t request, const Score& score)>;
  std::vector<Score> score(std::span<const TokenPair> requests, const OnScore& on_score = {});
  const ScorerStats& stats() const { return stats_; }

 private:
  struct Input;
  struct Batch;
  void make_cache();
  std::vector<Input> sort_inputs(std::span<const TokenPair> requests) const;
  void add_input(Batch& batch, const Input& input);
  void run_batch(Batch& batch, std::span<const TokenPair> requests, std::vector<Score>& scores,
                 const OnScore& on_score);
  void read_scores(Batch& batch, const core::Tensor& hidden, std::span<const TokenPair> requests,
                   std::vector<Score>& scores);

  const models::Transformer& model_;
  ScorerOptions options_;
  core::KvCache cache_;
  std::vector<int32_t> free_blocks_;
  std::vector<int32_t> last_tokens_, last_blocks_;  // of the input before, whose blocks may be shared
  ScorerStats stats_;
};

}  // namespace sinter::eval
