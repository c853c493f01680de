// Text files to token shards, on all cores, and a recipe's text sources made into shards before a run.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/text_files.h"
#include "spec/recipe.h"
#include "tokenizer/tokenizer.h"

namespace sinter::data {

struct TokenizeOptions : TextOptions {
  bool add_bos = true, add_eos = true;  // around every document, where the tokenizer has such tokens
  int64_t max_shard_tokens = int64_t{1} << 30;
  std::function<void(int64_t bytes_done, int64_t bytes)> progress;  // may be empty
};

struct TokenizeResult {
  int64_t num_documents = 0, num_tokens = 0, num_bytes = 0;
  std::vector<std::string> shards;
};

// A hash of what decides a tokenizer's ids, kept in shards so that data and model cannot be mixed up.
uint64_t tokenizer_hash(const tokenizer::Tokenizer& tokenizer);

// Documents of the files that the inputs stand for (text_files.h), in order, tokenized and written as OUTPUT.tok, then
// OUTPUT-00001.tok and on when there are more tokens than fit one shard. `output` may end in .tok. Documents that are
// empty or only white space are left out. Throws base::Error naming the file (and line, for .jsonl) that cannot be
// read, or the files when none has text; base::UsageError for an output without a file name.
TokenizeResult tokenize_files(const std::vector<std::string>& inputs, const std::string& output,
                              const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options);

// Throws base::Error for a source that is not there, and for text without a tokenizer.
void check_sources(const std::vector<spec::SourceRecipe>& sources, const tokenizer::Tokenizer* tokenizer);

// Every text source (a file, a folder, a pattern) replaced by a shard in `cache` made from it with the tokenizer; a
// shard that is there already for the same text and tokenizer is used again. Shard sources stay as they are.
// Half-written shards that killed runs left in `cache` are removed.
std::vector<spec::SourceRecipe> prepare_sources(const std::vector<spec::SourceRecipe>& sources,
                                                const std::string& cache, const tokenizer::Tokenizer* tokenizer,
                                                const TokenizeOptions& options);

}  // namespace sinter::data
