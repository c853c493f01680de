// Evaluates what an OpenAI-compatible server serves: log-likelihoods by echo with logprobs, answers by completions.
#pragma once
#include <memory>
#include <string>

#include "eval/score/backend.h"

namespace sinter::eval {

struct ServerBackendOptions {
  std::string url;      // "http://HOST:PORT", with or without "/v1"
  std::string model;    // the name there; "" = the first that /v1/models has
  std::string api_key;  // "" = none
  const tokenizer::Tokenizer* tokenizer =
      nullptr;              // must outlive it; null = the server's /tokenize and /tokenizer_info
  int64_t max_length = 0;   // of a prompt with its answer; 0 = what /v1/models says, else 2048
  int64_t concurrency = 8;  // connections
  int64_t batch = 16;       // prompts of one request for log-likelihoods
  bool uses_chat = false;   // answers by /v1/chat/completions, a prompt being the user's message; no log-likelihoods
  std::string system;       // with uses_chat: the system instruction
};

// Throws base::Error where the server does not answer, gives no log-probabilities of the prompt, or has no tokenizer
// while none is given.
std::unique_ptr<ScoringBackend> make_server_backend(const ServerBackendOptions& options);

}  // namespace sinter::eval
