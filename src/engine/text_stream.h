// Text of tokens as they come: whole characters, and stop strings found wherever tokens cut them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sinter::engine {

// Finds the stop string that ends first.
class TextStop {
 public:
  // The tokenizer must outlive it. The text begins behind the prompt.
  TextStop(const tokenizer::Tokenizer& tokenizer, std::vector<std::string> stops, std::span<const int32_t> prompt);
  // The stop string that ends first in the text so far with this token behind it, by index; -1: none yet. Whole
  // characters only are looked at.
  int32_t push(int32_t token);

 private:
  tokenizer::StreamDecoder decoder_;
  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string tail_;  // text that a stop string may have begun in
};

// What to show of an answer while it comes: text that may turn out to be the beginning of a stop string is held back,
// and nothing comes from there on once it has.
class TextStream {
 public:
  // The tokenizer must outlive it.
  TextStream(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt, std::vector<std::string> stops,
             tokenizer::StreamDecoder::Invalid invalid = tokenizer::StreamDecoder::Invalid::replace);
  std::string push(int32_t token);
  std::string finish();  // what is still held back, at the end
  bool has_stopped() const { return has_stopped_; }

 private:
  std::string show(bool all);

  tokenizer::StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;
  bool has_stopped_ = false;
};

// The text of a whole answer, cut before the stop string that ends first; bytes that are no UTF-8 stay.
std::string answer_text(const tokenizer::Tokenizer& tokenizer, std::span<const int32_t> prompt,
                        std::span<const int32_t> tokens, const std::vector<std::string>& stops);

}  // namespace sinter::engine
