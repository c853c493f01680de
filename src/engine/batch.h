// Lists of requests run to their end on an engine: generation from a file, rollouts, scoring of given continuations.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "engine/engine.h"

namespace sinter::engine {

// A choice, whole.
struct Completion {
  std::vector<int32_t> tokens;             // without a stop token
  std::vector<float> logprobs;             // of each, where the request asked (Request::logprobs >= 0)
  std::vector<OutputToken> details;        // with Request::logprobs > 0: the likeliest beside each
  std::vector<OutputToken> prompt_tokens;  // with Request::prompt_logprobs >= 0, of choice 0
  FinishReason reason = FinishReason::length;
  int32_t stop_token = -1, stop_string = -1;
  Usage usage;
  std::string error;
};

struct BatchCallbacks {
  // As tokens come, (request, choice, token); return false to end that request there.
  std::function<bool(size_t request, int32_t choice, int32_t token)> on_token;
  // As a choice ends.
  std::function<void(size_t request, int32_t choice, const Completion& completion)> on_completion;
};

// Runs all requests to their end and returns the choices of each. Steps the engine itself: nobody else may meanwhile.
// Throws what Engine::check throws, naming the request by its number, before any work. The queue's bounds do not apply:
// requests are submitted as places come free. What a callback throws ends the run, every request cancelled.
std::vector<std::vector<Completion>> run_batch(Engine& engine, std::vector<Request> requests,
                                               const BatchCallbacks& callbacks = {});

// A continuation to score behind a context.
struct ScoreRequest {
  std::vector<int32_t> context;       // at least one token
  std::vector<int32_t> continuation;  // at least one token
  uint64_t adapter = 0;
};
struct TokenScore {
  double logprob = 0;           // of the continuation: the sum
  bool is_greedy = false;       // each token of it is the model's likeliest
  std::vector<float> logprobs;  // of each token
};
// Log-likelihoods by the model's forward, in batches; contexts that begin alike are computed once where the prefix
// cache has room. `progress` (may be empty) gets (done, in all).
std::vector<TokenScore> score(Engine& engine, const std::vector<ScoreRequest>& requests,
                              const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace sinter::engine
