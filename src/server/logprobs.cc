#include "server/logprobs.h"

#include <nlohmann/json.hpp>

namespace sinter::server {
namespace {

std::string text_of(const tokenizer::Tokenizer& tokenizer, int32_t token) {
  if (!tokenizer.has_id(token)) return "";
  return tokenizer.is_special(token) ? tokenizer.token_text(token) : tokenizer.token_bytes(token);
}

int64_t count_chars(std::string_view text) {
  int64_t n = 0;
  for (char c : text) n += (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  return n;
}

// JSON has no infinity.
double finite(float logprob) { return logprob > -9999.0f ? logprob : -9999.0; }

Json bytes_of(const std::string& text) {
  Json bytes = Json::array();
  for (char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

}  // namespace

Json completion_logprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens,
                         const PromptLogprobs& prompt, int64_t& offset) {
  Json out{{"tokens", Json::array()},
           {"token_logprobs", Json::array()},
           {"top_logprobs", Json::array()},
           {"text_offset", Json::array()}};
  auto add = [&](int32_t token, Json logprob, Json top) {
    const std::string text = text_of(tokenizer, token);
    out["tokens"].push_back(text);
    out["token_logprobs"].push_back(std::move(logprob));
    out["top_logprobs"].push_back(std::move(top));
    out["text_offset"].push_back(offset);
    offset += count_chars(text);
  };
  auto add_token = [&](const engine::OutputToken& token) {
    Json top = Json::object();
    for (const auto& t : token.top) {
      const std::string text = text_of(tokenizer, t.token);
      if (!top.contains(text)) top[text] = finite(t.logprob);  // two tokens may look alike: the likelier stays
    }
    add(token.token, finite(token.logprob), std::move(top));
  };
  const size_t unknown = prompt.ids.size() - std::min(prompt.ids.size(), prompt.details.size());
  for (size_t i = 0; i < prompt.ids.size(); ++i) {
    if (i < unknown) {
      add(prompt.ids[i], nullptr, nullptr);
    } else {
      add_token(prompt.details[i - unknown]);
    }
  }
  for (const auto& token : tokens) add_token(token);
  return out;
}

Json chat_logprobs(const tokenizer::Tokenizer& tokenizer, const std::vector<engine::OutputToken>& tokens) {
  Json out = Json::array();
  for (const auto& token : tokens) {
    const std::string text = text_of(tokenizer, token.token);
    Json top = Json::array();
    for (const auto& t : token.top) {
      const std::string other = text_of(tokenizer, t.token);
      top.push_back({{"token", other}, {"logprob", finite(t.logprob)}, {"bytes", bytes_of(other)}});
    }
    out.push_back({{"token", text},
                   {"logprob", finite(token.logprob)},
                   {"bytes", bytes_of(text)},
                   {"top_logprobs", std::move(top)}});
  }
  return out;
}

Json usage_json(const TotalUsage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.output_tokens},
          {"total_tokens", usage.prompt_tokens + usage.output_tokens},
          {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}};
}

}  // namespace sinter::server
