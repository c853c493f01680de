// Usage and log-probabilities in OpenAI's forms.
#pragma once
#include <vector>

#include "engine/request.h"
#include "server/fields.h"
#include "server/generation.h"
#include "tokenizer/tokenizer.h"

namespace sinter::server {

struct PromptLogprobs {
  std::vector<int32_t> ids;                  // the whole prompt; empty: not shown
  std::vector<engine::OutputToken> details;  // of its last tokens
};

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}; the offset counts characters and moves on.
Json completion_logprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens,
                         const PromptLogprobs& prompt, int64_t& offset);
// [{"token", "logprob", "bytes", "top_logprobs"}]
Json chat_logprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens);
Json usage_json(const TotalUsage& usage);

}  // namespace sinter::server
