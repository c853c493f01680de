// What a loaded tokenizer consists of. The loaders fill the upper half; finish() derives the rest.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/pipeline.h"
#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {

// Caches lent to one encode call at a time, so that threads do not share one.
class CachePool {
 public:
  std::unique_ptr<PieceCache> take();
  void give_back(std::unique_ptr<PieceCache> cache);

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PieceCache>> free_;
};

struct TokenizerParts {
  std::string origin;  // the file, for errors and descriptions
  BpeModel model;
  std::vector<AddedToken> added;
  // The stages as JSON text, in the form of tokenizer.json; "null" for none.
  std::string normalizer_json = "null", pre_tokenizer_json = "null", post_processor_json = "null",
              decoder_json = "null";
  SpecialIds special_ids;

  // ---- derived ----
  std::unique_ptr<Normalizer> normalizer;
  PreTokenizerPlan pre_tokenizer;
  DecodeRules decode_rules;
  TemplateIds around;
  AddedTokenFinder raw_finder, normalized_finder;
  std::vector<std::string> added_texts;  // of each added token, as it is looked for and as it is decoded
  std::vector<int32_t> added_at;         // id -> index in `added`, or -1
  std::unordered_map<std::string, size_t> added_by_content;
  bool split_at_mark = false;  // pieces may be cut before U+2581 without changing the result
  int32_t size = 0;
  mutable CachePool caches;

  // The added token with this id, or null.
  const AddedToken* added_token(int32_t id) const {
    if (id < 0 || id >= size || added_at[static_cast<size_t>(id)] < 0) return nullptr;
    return &added[static_cast<size_t>(added_at[static_cast<size_t>(id)])];
  }
  // Checks the added tokens and builds the lower half. Throws base::Error.
  void finish();
};

// Appends the ids of text in which no special token is read, with nothing put around it. `at_start`: the input begins
// with it.
void encode_plain(const TokenizerParts& parts, std::string_view text, bool at_start, std::vector<int32_t>& ids);

// The bytes of one token as the decoder gives them, in the middle of a text.
std::string decoded_token(const TokenizerParts& parts, int32_t id);

}  // namespace sinter::tokenizer
