// The tokenizer and the chat templates of a GGUF file's metadata.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "io/gguf.h"
#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {

// From the keys tokenizer.ggml.*: SentencePiece BPE ("llama") and byte-level BPE ("gpt2") whose split pattern the key
// tokenizer.ggml.pre names. Throws base::Error naming the file and the key; an unknown name is never guessed.
Tokenizer tokenizer_from_gguf(const io::GgufFile& file);

// "default" and the others by name; empty where there is none.
std::map<std::string, std::string> chat_templates_of(const io::GgufFile& file);
// "bos_token" to "<s>" and so on.
std::map<std::string, std::string> special_tokens_of(const io::GgufFile& file);

// The tokens that end a text: of eos_token_id and eot_token_id, and control tokens that models end a turn with.
std::vector<int64_t> end_tokens_of(const io::GgufFile& file);

// Names of tokenizer.ggml.pre whose pattern is known, and that for a tokenizer; "" when there is none.
std::vector<std::string> known_pre_names();
std::string pre_name_of(const Tokenizer& tokenizer);

}  // namespace sinter::tokenizer
