// Who answers: a model in this process, or a server. Tasks ask through this interface only.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/score/scorer.h"

namespace sinter::eval {

struct GenerationRequest {
  std::string prompt;
  std::vector<std::string> until;  // besides the end of text
  int64_t max_tokens = 256;
  double temperature = 0, top_p = 1;
  uint64_t seed = 1234;
};

struct GenerationResult {
  std::string text;             // cut at the first stop text
  std::vector<int32_t> tokens;  // what was generated, the stop's own tokens among them; empty from a server
  int64_t prompt_tokens = 0;    // after it was cut from the left to leave room
};

class ScoringBackend {
 public:
  virtual ~ScoringBackend() = default;
  virtual const PairEncoder& encoder() const = 0;
  // Results as they come, in an order of its own.
  using OnScore = std::function<void(size_t request, const Score& score)>;
  using OnGeneration = std::function<void(size_t request, const GenerationResult& result)>;
  virtual void score(std::span<const TokenPair> requests, const OnScore& on_score) = 0;
  virtual void generate(std::span<const GenerationRequest> requests, const OnGeneration& on_result) = 0;
  virtual ScorerStats stats() const { return {}; }
};

struct ModelBackendOptions {
  ScorerOptions scorer;
  int64_t max_sequences = 32;  // generated at once
};

// `model` and `tokenizer` must outlive it.
std::unique_ptr<ScoringBackend> make_model_backend(const models::Transformer& model,
                                                   const tokenizer::Tokenizer& tokenizer,
                                                   const ModelBackendOptions& options);

}  // namespace sinter::eval
