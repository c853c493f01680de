#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

// The characters by their first bytes, going back from `end`.
size_t char_before(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && end - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xc0) == 0x80) --begin;
  return decode_char(text, begin).length == end - begin ? begin : end - 1;
}

bool is_word_char(std::string_view text, size_t pos) {
  const uint32_t code = decode_char(text, pos).code;
  return code == '_' || (CharClasses()(code) & (kLetter | kNumber | kMark));
}
bool is_space_char(std::string_view text, size_t pos) { return CharClasses()(decode_char(text, pos).code) & kSpace; }

}  // namespace

void AddedTokenFinder::add(const AddedToken& token, std::string_view pattern) {
  if (pattern.empty()) return;
  uint32_t node = 0;
  for (unsigned char byte : pattern) {
    auto [edge, is_new] =
        edges_.try_emplace(static_cast<uint64_t>(node) << 8 | byte, static_cast<uint32_t>(token_at_.size()));
    if (is_new) token_at_.push_back(-1);
    node = edge->second;
  }
  if (token_at_[node] < 0) token_at_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
  first_bytes_.set(static_cast<unsigned char>(pattern[0]));
  has_ordinary_ = has_ordinary_ || !token.special;
  const bool has_space = pattern.find_first_of(" \n") != std::string_view::npos;
  if (has_space || token.lstrip || token.rstrip || token.single_word) allows_cuts_ = false;
}

size_t AddedTokenFinder::longest_match(std::string_view text, size_t pos, const AddedToken*& token) const {
  size_t longest = 0;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    auto edge = edges_.find(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (int32_t at = token_at_[node]; at >= 0) {
      longest = i + 1 - pos;
      token = &tokens_[static_cast<size_t>(at)];
    }
  }
  return longest;
}

void AddedTokenFinder::split(std::string_view text, bool special, base::FunctionRef<void(size_t, size_t)> on_text,
                             base::FunctionRef<void(int32_t)> on_token) const {
  size_t done = 0;
  if (special ? !empty() : has_ordinary_) {
    for (size_t pos = 0; pos < text.size();) {
      if (!first_bytes_[static_cast<unsigned char>(text[pos])]) {
        ++pos;
        continue;
      }
      const AddedToken* token = nullptr;
      const size_t length = longest_match(text, pos, token);
      if (length == 0) {
        ++pos;
        continue;
      }
      size_t begin = pos, end = pos + length;
      pos = end;
      if (token->special && !special) continue;
      if (token->single_word && ((begin > 0 && is_word_char(text, char_before(text, begin))) ||
                                 (end < text.size() && is_word_char(text, end)))) {
        continue;
      }
      if (token->lstrip) {
        while (begin > done && is_space_char(text, char_before(text, begin))) begin = char_before(text, begin);
        begin = std::max(begin, done);
      }
      if (token->rstrip) {
        while (end < text.size() && is_space_char(text, end)) end += decode_char(text, end).length;
      }
      begin = std::max(begin, done);
      if (done < begin) on_text(done, begin);
      on_token(token->id);
      done = std::max(end, done);
    }
  }
  if (done < text.size()) on_text(done, text.size());
}

}  // namespace sinter::tokenizer
