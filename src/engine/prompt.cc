#include "engine/prompt.h"

#include <algorithm>

#include "base/error.h"

namespace sinter::engine {

int32_t begin_token(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec) {
  const tokenizer::SpecialIds& ids = tokenizer.special_ids();
  const int64_t eos = spec.eos_tokens.empty() ? -1 : spec.eos_tokens[0], gpt2 = tokenizer.token_id("<|endoftext|>");
  for (int64_t id : {int64_t{ids.bos}, int64_t{ids.eos}, spec.bos_token, eos, gpt2}) {
    if (id >= 0) return static_cast<int32_t>(id);
  }
  return -1;
}

std::vector<int32_t> encode_prompt(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                                   const spec::ModelSpec& spec) {
  std::vector<int32_t> ids = tokenizer.encode(text, {.parse_special = true, .add_special = true});
  if (ids.empty()) {
    const int32_t first = begin_token(tokenizer, spec);
    SINTER_CHECK(first >= 0, "the prompt is empty and the model names no BOS or EOS token to begin with");
    ids.push_back(first);
  }
  return ids;
}

std::vector<int32_t> stop_tokens(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec) {
  std::vector<int32_t> tokens;
  for (int64_t token : spec.eos_tokens) tokens.push_back(static_cast<int32_t>(token));
  const int32_t eos = tokenizer.special_ids().eos;
  if (eos >= 0 && std::find(tokens.begin(), tokens.end(), eos) == tokens.end()) tokens.push_back(eos);
  return tokens;
}

bool has_room(const spec::ModelSpec& spec, size_t prompt_tokens) { return room_for(spec, prompt_tokens, 1) > 0; }

int64_t room_for(const spec::ModelSpec& spec, size_t prompt_tokens, int64_t wanted) {
  if (!spec.learned_positions) return wanted;
  return std::clamp<int64_t>(spec.max_positions - static_cast<int64_t>(prompt_tokens), 0, wanted);
}

bool is_past_positions(const spec::ModelSpec& spec, size_t num_tokens) {
  // Dynamic scaling is made for going on.
  if (spec.learned_positions || spec.rope.kind == spec::RopeKind::dynamic) return false;
  return static_cast<int64_t>(num_tokens) > spec.max_positions;
}

std::string continuation_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              std::span<const int32_t> tokens) {
  tokenizer::StreamDecoder decoder(tokenizer, true, tokenizer::StreamDecoder::Invalid::keep);
  decoder.skip(prompt);
  std::string text;
  for (int32_t token : tokens) text += decoder.push(token);
  return text + decoder.finish();
}

}  // namespace sinter::engine
