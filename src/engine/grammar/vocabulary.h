// A tokenizer's tokens as a tree of their bytes, for masks.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sinter::engine::grammar {

struct TokenBytes {
  // The tree in the order of a depth-first walk: a node's children follow it, `skip` is the node behind them all.
  struct Node {
    uint8_t byte;
    uint8_t reserved = 0;
    uint16_t depth;  // 1 for the first byte
    int32_t token;   // that ends here; -1: none
    int32_t skip;
  };
  std::vector<Node> nodes;
  std::vector<std::string> bytes;   // of each token; special ones begin with kSpecialMark
  std::vector<int32_t> next_same;   // another token of the same bytes; -1: none
  std::vector<int32_t> end_tokens;  // end the output
  int32_t size = 0;                 // tokens below this exist
  int32_t max_depth = 0;
  // How the tokenizer writes a text; may be empty.
  std::function<std::vector<int32_t>(const std::string&)> encode;
};

// From the bytes of each token ("" for those that must never come).
TokenBytes make_vocabulary(std::vector<std::string> token_bytes, std::vector<int32_t> end_tokens);
// The tokenizer must outlive it.
TokenBytes make_vocabulary(const tokenizer::Tokenizer& tokenizer, std::vector<int32_t> end_tokens);

}  // namespace sinter::engine::grammar
