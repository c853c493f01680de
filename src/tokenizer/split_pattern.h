// The split patterns of public tokenizers, written by hand: each finds the end of the piece that starts at a position,
// exactly as the regular expression would, in one pass and without a regex engine.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sinter::tokenizer {

enum class SplitPattern {
  gpt2,    // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  cl100k,  // tiktoken's cl100k_base; differs from llama3 only for white space at the end of the text
  llama3,  // (?i:'s|...)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
  qwen2,   // llama3 with single digits
  o200k,   // words by case, with their contraction
};

// The end of the piece that starts at pos; pos < text.size(). The pieces of a text follow each other without gaps.
using PieceEnd = size_t (*)(std::string_view text, size_t pos);
PieceEnd piece_end(SplitPattern pattern);

// The regular expression as tokenizer.json files write it.
std::string_view pattern_regex(SplitPattern pattern);
// The pattern for a regular expression in any of the spellings that public tokenizers use.
std::optional<SplitPattern> find_pattern(std::string_view regex);
// By name: "gpt2", "cl100k", "llama3", "qwen2", "o200k".
std::optional<SplitPattern> pattern_by_name(std::string_view name);
std::string_view pattern_name(SplitPattern pattern);
const std::vector<std::string>& pattern_names();

// A position in (from, text.size()] where the text may be cut so that both sides split as they would together: after an
// ASCII letter and before a space or newline. text.size() when there is none.
size_t safe_cut(std::string_view text, size_t from);

}  // namespace sinter::tokenizer
