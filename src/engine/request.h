// What one asks of the engine and what it answers.
#pragma once
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/sampler.h"

namespace sinter::engine {

using RequestId = uint64_t;
using Clock = std::chrono::steady_clock;

// Which tokens may come next: structured output. One object per choice; the engine calls it from its stepping thread,
// once per token and never again for a token that was accepted (a preempted request keeps its tokens).
class TokenMask {
 public:
  virtual ~TokenMask() = default;
  // Bit t % 32 of word t / 32 set: token t may come next. Tokens behind the last word may not. Empty: all may. Valid
  // until the next call. A mask without any token ends the choice with FinishReason::stop.
  virtual std::span<const uint32_t> mask() = 0;
  // The token that was chosen, or forced. Stop tokens are not passed on.
  virtual void accept(int32_t token) = 0;
  // Tokens that come next whatever the model says; the engine takes them without choosing, and calls accept for each.
  // Valid until the next call.
  virtual std::span<const int32_t> forced() { return {}; }
  // Whether the output is complete and nothing may follow: the choice ends with FinishReason::stop.
  virtual bool is_complete() const { return false; }
  // A mask in the same state, for a further choice of the same request (n > 1).
  virtual std::unique_ptr<TokenMask> clone() const = 0;
};

enum class FinishReason : uint8_t {
  none,       // goes on
  stop,       // a stop token, a stop string or the end of structured output
  length,     // max_new_tokens, or no room left in the model
  cancelled,  // by cancel()
  deadline,   // the deadline passed
  error       // see Output::error
};
const char* finish_reason_name(FinishReason reason);

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// A token with what was asked for beside it. Log-probabilities are the model's own, before temperature, penalties,
// filters and masks: the log-softmax that training takes its loss from.
struct OutputToken {
  int32_t token = 0;
  float logprob = 0;              // with logprobs >= 0
  std::vector<TokenLogprob> top;  // the likeliest, best first, with logprobs > 0
  int64_t rank = 0;               // with logprobs >= 0: how many tokens are likelier; 0 = the likeliest
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache when the request began
  int64_t output_tokens = 0;  // of this choice, a stop token not counted
};

// One event of one choice: new tokens, its end, or both.
struct Output {
  RequestId id = 0;
  int32_t choice = 0;                      // 0 to n - 1
  std::vector<OutputToken> tokens;         // new since the last event of this choice
  std::vector<OutputToken> prompt_tokens;  // first event of choice 0 with prompt_logprobs: from prompt_logprobs_from on
  FinishReason finish = FinishReason::none;
  int32_t stop_token = -1;   // which one ended it; -1: none
  int32_t stop_string = -1;  // index into Request::stop_strings, likewise; the tokens hold it, the text is yours to cut
  Usage usage;
  double queue_seconds = 0;      // from submit to the first step it took part in
  double prefill_seconds = 0;    // from there to the first token
  std::string error;             // with FinishReason::error
  std::vector<float> embedding;  // with Request::embeds: (C), as the model has it, not scaled to length 1
};
using OnOutput = std::function<void(Output&& output)>;

struct Request {
  std::vector<int32_t> prompt;
  SamplingOptions sampling;
  int64_t max_new_tokens = 128;
  int64_t min_new_tokens = 0;  // no stop token and no stop string before
  std::vector<int32_t> stop_tokens;
  std::vector<std::string> stop_strings;  // need EngineOptions::tokenizer
  int32_t n = 1;  // choices; choice i > 0 draws by a seed of its own made from sampling.seed and i
  int32_t best_of =
      0;  // more than n: so many are made, the n of the highest mean log-probability are given out at the end
  int32_t logprobs = -1;             // -1: none; 0: of the chosen token; k: also of the k likeliest
  int32_t prompt_logprobs = -1;      // likewise of the prompt's tokens
  int64_t prompt_logprobs_from = 1;  // first of them; tokens before may come from the prefix cache
  int32_t priority = 0;              // lower goes first
  std::optional<Clock::time_point> deadline;
  bool embeds =
      false;  // the prompt's last hidden state is wanted, no tokens: Output::embedding, then FinishReason::stop
  uint64_t cache_salt = 0;          // requests share cached prefixes only with those of the same salt ...
  uint64_t adapter = 0;             // ... and of the same adapter
  std::shared_ptr<TokenMask> mask;  // null: free text
  OnOutput on_output;               // called on the stepping thread; empty: outputs go to Engine::take_outputs
};

}  // namespace sinter::engine
