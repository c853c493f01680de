#include "eval/score/encode.h"

#include <algorithm>

#include "base/error.h"
#include "tokenizer/jinja/value.h"

namespace sinter::eval {

PairEncoder::PairEncoder(const tokenizer::Tokenizer& tokenizer, int32_t prefix_token, int64_t max_length)
    : PairEncoder(
          [&tokenizer](std::string_view text, bool adds_special) {
            return tokenizer.encode(text, {.parse_special = true, .add_special = adds_special});
          },
          tokenizer.special_ids().bos >= 0 ? tokenizer.token_text(tokenizer.special_ids().bos) : "", prefix_token,
          max_length) {}

PairEncoder::PairEncoder(Encode encode, std::string bos_text, int32_t prefix_token, int64_t max_length)
    : encode_(std::move(encode)), prefix_(prefix_token), max_length_(max_length), bos_text_(std::move(bos_text)) {}

std::vector<int32_t> PairEncoder::encode(std::string_view text) const {
  const bool has_bos = !bos_text_.empty() && text.starts_with(bos_text_);
  return encode_(text, !has_bos);
}

TokenPair PairEncoder::encode_pair(std::string_view context, std::string_view continuation) const {
  TokenPair pair;
  if (context.empty()) {
    SINTER_CHECK(prefix_ >= 0, "the context is empty, and the tokenizer has neither BOS nor EOS to put there");
    pair.context = {prefix_};
    pair.continuation = encode_(continuation, false);
    if (!pair.continuation.empty() && pair.continuation.front() == prefix_) {
      pair.continuation.erase(pair.continuation.begin());
    }
  } else {
    const std::string_view kept = tokenizer::jinja::strip(context, nullptr, false, true);
    std::string whole(context);
    whole += continuation;
    pair.context = encode(kept);
    std::vector<int32_t> tokens = encode(whole);
    const size_t cut = std::min(pair.context.size(), tokens.size());
    pair.continuation.assign(tokens.begin() + static_cast<ptrdiff_t>(cut), tokens.end());
  }
  SINTER_CHECK(!pair.context.empty(), "the context \"{}\" has no tokens, and nothing can be predicted behind it",
               context);
  SINTER_CHECK(!pair.continuation.empty(),
               "the continuation \"{}\" has no tokens of its own behind \"...{}\": they are one with the context's",
               continuation, context.substr(context.size() - std::min<size_t>(context.size(), 20)));
  return pair;
}

std::vector<TokenWindow> PairEncoder::encode_rolling(std::string_view text) const {
  const std::vector<int32_t> tokens = encode(text);
  std::vector<TokenWindow> windows;
  const auto total = static_cast<int64_t>(tokens.size());
  SINTER_CHECK(prefix_ >= 0, "the tokenizer has neither BOS nor EOS, which a text has to follow");
  for (int64_t at = 0; at < total;) {
    const int64_t count = std::min(max_length_, total - at);
    TokenWindow window;
    if (at == 0) {
      window.context = {prefix_};
    } else {
      window.context.assign(tokens.begin() + (at + count - max_length_ - 1), tokens.begin() + at);
    }
    window.continuation.assign(tokens.begin() + at, tokens.begin() + at + count);
    windows.push_back(std::move(window));
    at += count;
  }
  return windows;
}

}  // namespace sinter::eval
