// How a text becomes a prompt, how much room is behind it and what ends an answer: one rule for generate, chat,
// serving, samples in training and evaluation.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"
#include "tokenizer/tokenizer.h"

namespace sinter::engine {

// What a text without anything before it follows: BOS, else EOS, of the tokenizer, else of the model; a GPT-2 folder
// that names none still has the token transformers takes for both. -1: nothing.
int32_t begin_token(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec);

// A text as a prompt: special tokens in it are read, BOS and its like are added as the tokenizer says. An empty text is
// begin_token alone. Throws base::Error where there is none.
std::vector<int32_t> encode_prompt(const tokenizer::Tokenizer& tokenizer, std::string_view text,
                                   const spec::ModelSpec& spec);

// Tokens that end an answer and are not part of it: the model's EOS tokens and the tokenizer's.
std::vector<int32_t> stop_tokens(const tokenizer::Tokenizer& tokenizer, const spec::ModelSpec& spec);

// Whether a prompt leaves room for new tokens: a table of positions has an end, rotary positions go on.
bool has_room(const spec::ModelSpec& spec, size_t prompt_tokens);
// How many of `wanted` new tokens there is room for; 0: none.
int64_t room_for(const spec::ModelSpec& spec, size_t prompt_tokens, int64_t wanted);
// Whether a text of so many tokens went past the positions that rotary embeddings were trained with.
bool is_past_positions(const spec::ModelSpec& spec, size_t num_tokens);

// The text of new tokens behind a prompt's, special ones left out; bytes that are no UTF-8 stay.
std::string continuation_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                              std::span<const int32_t> tokens);

}  // namespace sinter::engine
