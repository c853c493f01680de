// Merges for vocabularies that give each token a rank or score instead of listing pairs.
#pragma once
#include <cstdint>

#include "base/threads.h"
#include "tokenizer/bpe.h"

namespace sinter::tokenizer {

// Every way to split a token is tried, so a hostile file could cost the square of its longest token.
inline constexpr size_t kMaxTokenBytes = 1024;

// For every token, every split into two tokens becomes a merge with the token's rank (lower merges first; kNoRank:
// the token is never merged to, nor merged from).
void add_merges_from_ranks(BpeModel& model, base::FunctionRef<uint32_t(int32_t id)> rank);

}  // namespace sinter::tokenizer
