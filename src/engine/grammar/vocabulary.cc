#include "engine/grammar/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "engine/grammar/program.h"

namespace sinter::engine::grammar {

TokenBytes make_vocabulary(std::vector<std::string> token_bytes, std::vector<int32_t> end_tokens) {
  TokenBytes v;
  v.size = static_cast<int32_t>(token_bytes.size());
  v.bytes = std::move(token_bytes);
  v.end_tokens = std::move(end_tokens);
  for (int32_t end : v.end_tokens) {
    if (end >= 0 && end < v.size) v.bytes[static_cast<size_t>(end)].clear();
  }
  v.next_same.assign(static_cast<size_t>(v.size), -1);
  std::vector<int32_t> order;
  for (int32_t t = 0; t < v.size; ++t) {
    if (!v.bytes[static_cast<size_t>(t)].empty() && v.bytes[static_cast<size_t>(t)].size() < 4096) order.push_back(t);
  }
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    const int sign = v.bytes[static_cast<size_t>(a)].compare(v.bytes[static_cast<size_t>(b)]);
    return sign != 0 ? sign < 0 : a < b;
  });
  std::vector<int32_t> path;  // nodes of the token before
  const std::string* before = nullptr;
  auto close = [&](size_t depth) {
    while (path.size() > depth) {
      v.nodes[static_cast<size_t>(path.back())].skip = static_cast<int32_t>(v.nodes.size());
      path.pop_back();
    }
  };
  for (int32_t t : order) {
    const std::string& text = v.bytes[static_cast<size_t>(t)];
    size_t common = 0;
    while (before && common < before->size() && common < text.size() && (*before)[common] == text[common]) ++common;
    if (before && common == text.size() && common == before->size()) {
      const int32_t first = v.nodes[static_cast<size_t>(path.back())].token;
      v.next_same[static_cast<size_t>(t)] = v.next_same[static_cast<size_t>(first)];
      v.next_same[static_cast<size_t>(first)] = t;
      continue;
    }
    close(common);
    for (size_t i = common; i < text.size(); ++i) {
      path.push_back(static_cast<int32_t>(v.nodes.size()));
      v.nodes.push_back({static_cast<uint8_t>(text[i]), 0, static_cast<uint16_t>(i + 1), -1, 0});
    }
    v.nodes.back().token = t;
    v.max_depth = std::max(v.max_depth, static_cast<int32_t>(text.size()));
    before = &text;
  }
  close(0);
  return v;
}

TokenBytes make_vocabulary(const tokenizer::Tokenizer& tokenizer, std::vector<int32_t> end_tokens) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocab_size()));
  for (int32_t t = 0; t < tokenizer.vocab_size(); ++t) {
    if (!tokenizer.has_id(t)) continue;
    std::string text = tokenizer.token_bytes(t);
    if (tokenizer.is_special(t)) text = static_cast<char>(kSpecialMark) + tokenizer.token_text(t);
    bytes[static_cast<size_t>(t)] = std::move(text);
  }
  TokenBytes v = make_vocabulary(std::move(bytes), std::move(end_tokens));
  v.encode = [&tokenizer](const std::string& text) { return tokenizer.encode(text); };
  return v;
}

}  // namespace sinter::engine::grammar
