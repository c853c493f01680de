// What a SentencePiece model says, from a .model file or a GGUF.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {

enum PieceType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct SentencePiece {
  std::string_view text;
  float score = 0;
  uint64_t type = kNormal;
};

// The views must live until the tokenizer is made.
struct SpModel {
  std::vector<SentencePiece> pieces;
  bool has_trainer = false;
  uint64_t model_type = 1;  // 1 unigram, 2 BPE, 3 word, 4 character
  int64_t vocab_size = -1;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;
  bool byte_fallback = false, whitespace_as_suffix = false;
  std::string_view charsmap;
  // GGUF's rule: what stands between special tokens is normalized as a text of its own.
  bool cuts_specials_first = false;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Throws base::Error naming what is not supported or broken.
Tokenizer make_sentencepiece_tokenizer(const SpModel& model, const std::string& origin);

}  // namespace sinter::tokenizer
