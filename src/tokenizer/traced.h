// Text to tokens with the bytes that each stands for: what a loss mask is made by.
//
// Special tokens are cut out of the text first and the pieces between them are encoded one by one; nothing is added. A
// text may hold places where a special token's text is only text: what a user typed.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {

struct ByteSpan {
  size_t begin = 0, end = 0;
  bool operator==(const ByteSpan&) const = default;
};

struct TracedText {
  std::vector<int32_t> ids;
  // Of each id: its bytes in the text. Empty for a token that stands for none (a space the model puts before a text).
  // Tokens that share a character, or characters that the normalizer made one, have both its bytes.
  std::vector<ByteSpan> bytes;
};

class TracedEncoder {
 public:
  // The tokenizer must outlive it.
  explicit TracedEncoder(const Tokenizer& tokenizer);
  // What begins an input (some models put a space before it): the text; nothing, since others stand before it; every
  // piece between special tokens.
  enum class Starts { text, nothing, pieces };
  // `plain_at`: a special token whose text has one of these places strictly inside is not read; in ascending order.
  // Throws base::Error where the tokenizer's normalizer changes the text so that its tokens cannot be traced.
  TracedText encode(std::string_view text, const std::vector<size_t>& plain_at = {},
                    Starts starts = Starts::text) const;
  // Places inside every special token's text in `text`, ascending: what `plain_at` takes.
  std::vector<size_t> marker_places(std::string_view text) const;

 private:
  struct Special {
    std::string content;
    int32_t id = -1;
    bool takes_space_before = false, takes_space_after = false;
  };
  const Special* match(std::string_view text, size_t at) const;
  void encode_piece(std::string_view text, ByteSpan piece, bool is_start, TracedText& out) const;

  const Tokenizer& tokenizer_;
  std::vector<Special> specials_;  // longest first
  bool can_begin_[256] = {};
};

}  // namespace sinter::tokenizer
