// Token files of other programs: datatrove's .ds (with .index, .loss, .metadata) and Megatron's .bin/.idx, in and out.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::data {

// Documents as ids, and for each token whether it is trained on (empty: all are).
struct TokenDocuments {
  std::vector<std::vector<int32_t>> documents;
  std::vector<std::vector<uint8_t>> loss_masks;
  int token_bytes = 2;
};

// `path` names the .ds file; its .index must be there, .loss may be. Throws base::Error naming the file that is
// damaged.
TokenDocuments read_datatrove(const std::string& path, int token_bytes);
// Writes PATH, PATH.index, PATH.metadata and, with masks, PATH.loss.
void write_datatrove(const std::string& path, const TokenDocuments& tokens, std::string_view tokenizer_name);

// `stem` without .bin or .idx.
TokenDocuments read_megatron(const std::string& stem);
void write_megatron(const std::string& stem, const TokenDocuments& tokens);

}  // namespace sinter::data
