// Tokens that are cut out of the text before the model sees it: <|endoftext|>, [INST], ...
#pragma once
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/threads.h"

namespace sinter::tokenizer {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // ordinary text unless the caller asks for special tokens; left out by skip_special
  bool normalized = false;   // looked for in the normalized text, in its normalized form
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool single_word = false;  // only where no word character touches it
  bool plain_too = false;    // normalized, but where that form is not found looked for as it is written
  std::string symbol;        // not empty: looked for in the normalized text in just this form (SentencePiece)
};

// Finds added tokens, leftmost first and the longest of those that start at one place.
class AddedTokenFinder {
 public:
  // `pattern` is the text to look for (the content, or its normalized form).
  void add(const AddedToken& token, std::string_view pattern);
  bool empty() const { return tokens_.empty(); }
  bool has_ordinary() const { return has_ordinary_; }  // some token is not special
  // Whether text may be cut after an ASCII letter and before white space without changing what is found.
  bool allows_cuts() const { return allows_cuts_; }
  // Calls text(begin, end) for what lies between tokens and token(id) for each token, in order. Special tokens count
  // only when `special`.
  void split(std::string_view text, bool special, base::FunctionRef<void(size_t begin, size_t end)> on_text,
             base::FunctionRef<void(int32_t id)> on_token) const;

 private:
  size_t longest_match(std::string_view text, size_t pos, const AddedToken*& token) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, uint32_t> edges_;  // node << 8 | byte -> node
  std::vector<int32_t> token_at_{-1};             // node -> index in tokens_, or -1
  std::bitset<256> first_bytes_;
  bool has_ordinary_ = false, allows_cuts_ = true;
};

}  // namespace sinter::tokenizer
