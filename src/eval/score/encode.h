// Texts to tokens as lm-evaluation-harness does it: context and continuation tokenized together, so that a token that
// spans the border counts as it would in running text.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"
#include "tokenizer/tokenizer.h"

namespace sinter::eval {

struct TokenPair {
  std::vector<int32_t> context, continuation;
};

// One stretch of a long text: context tokens and those predicted behind them.
using TokenWindow = TokenPair;

class PairEncoder {
 public:
  // The tokenizer must outlive it. `max_length` is the longest input of the model.
  PairEncoder(const tokenizer::Tokenizer& tokenizer, int32_t prefix_token, int64_t max_length);
  // Tokens from elsewhere: `encode(text, adds_special)`; `bos_text` is "" where there is no BOS token.
  using Encode = std::function<std::vector<int32_t>(std::string_view text, bool adds_special)>;
  PairEncoder(Encode encode, std::string bos_text, int32_t prefix_token, int64_t max_length);

  // With BOS where the tokenizer adds one and the text does not begin with it. Special tokens in the text are those
  // tokens.
  std::vector<int32_t> encode(std::string_view text) const;
  // Throws base::Error where nothing of the continuation (or of the context) is left as tokens of its own.
  TokenPair encode_pair(std::string_view context, std::string_view continuation) const;
  // A whole text in windows: each token predicted once, with one token of context but for the last window, which is
  // filled up from the left.
  std::vector<TokenWindow> encode_rolling(std::string_view text) const;

  int64_t max_length() const { return max_length_; }
  int32_t prefix_token() const { return prefix_; }

 private:
  Encode encode_;
  int32_t prefix_;
  int64_t max_length_;
  std::string bos_text_;
};

}  // namespace sinter::eval
