// Generation over the ragged batch and the paged cache: prefill in chunks and decode together, many sequences at once.
//
// Each step gives every running sequence some tokens under one budget: one for those that decode, the next chunk of the
// prompt for those that do not yet. A sequence is admitted when the pool has the blocks it can ever need, so nothing is
// preempted. The serving engine will put its own scheduler in this place.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/block_pool.h"
#include "engine/sampler.h"
#include "models/transformer.h"

namespace sinter::engine {

struct Request {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  std::vector<int64_t> stop_tokens;  // end the sequence and are not part of it
  int64_t vocab_limit = 0;  // choose only tokens below this: models pad their vocabulary past the tokenizer's. 0 = all
};

enum class FinishReason { length, stop };

struct Result {
  std::vector<int32_t> tokens;
  FinishReason reason = FinishReason::length;
};

struct GeneratorOptions {
  int64_t block_size = 16;     // tokens per cache block
  int64_t cache_tokens = 0;    // room in the cache; 0 = enough for the longest request, twice
  int64_t step_tokens = 512;   // tokens of one step, prefill and decode together
  int64_t max_sequences = 64;  // running at once
};

// What a run did, for rates.
struct GeneratorStats {
  int64_t prompt_tokens = 0, new_tokens = 0, num_steps = 0;
  double seconds = 0;
};

class Generator {
 public:
  Generator(const models::Transformer& transformer, const GeneratorOptions& options);
  // Called with (request, token) as each token is chosen; return false to end that request there.
  using OnToken = std::function<bool(size_t request, int32_t token)>;
  // Called with (request, result) as each request ends, in the order in which they do.
  using OnResult = std::function<void(size_t request, const Result& result)>;
  // Runs all requests to their end. Throws what check() throws, before any work; what a callback throws ends the run.
  std::vector<Result> run(const std::vector<Request>& requests, const OnToken& on_token = {},
                          const OnResult& on_result = {});
  // Throws base::Error that begins with `name` for an empty prompt, a token outside the vocabulary, or a request longer
  // than a learned table of positions; base::UsageError for sampling options that make no sense.
  void check(const Request& request, const std::string& name) const;
  const GeneratorStats& stats() const { return stats_; }

 private:
  struct Sequence;
  void make_cache(const std::vector<Request>& requests);
  void run_step(std::vector<Sequence>& running, const OnToken& on_token);
  core::Tensor forward(std::vector<Sequence>& running, const std::vector<int64_t>& shares);
  int64_t share_of(const Sequence& sequence, int64_t budget) const;

  const models::Transformer& transformer_;
  GeneratorOptions options_;
  core::KvCache cache_;
  GeneratorStats stats_;
};

}  // namespace sinter::engine
