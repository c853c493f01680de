// Text to token ids and back, from the files that public models ship: tokenizer.json, .tiktoken, SentencePiece BPE.
//
// Text is bytes. Byte-level vocabularies (GPT-2, Llama 3, Qwen, .tiktoken) give decode(encode(x)) == x for every byte
// string, unless the file asks for a normal form (Qwen: NFC). Every const method may be called from several threads.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/split_pattern.h"

namespace sinter::tokenizer {

struct EncodeOptions {
  bool parse_special = false;  // special tokens in the text are those tokens, not ordinary text
  bool add_special = false;    // put the ids around the text that the file's post-processor asks for (BOS, EOS)
};

// Ids that a model folder names; -1 where there is none.
struct SpecialIds {
  int32_t bos = -1, eos = -1, pad = -1, unk = -1;
};

struct TokenizerParts;  // tokenizer_parts.h

class Tokenizer {
 public:
  // A folder (tokenizer.json, else tokenizer.model; BOS, EOS, PAD from tokenizer_config.json and config.json), one file
  // of the three formats, or a .gguf. Throws base::Error that names the file and the key.
  static Tokenizer load(const std::string& path);
  // The same from memory; `origin` stands for the file in errors and, for .tiktoken, its name tells the split pattern.
  static Tokenizer from_json(std::string_view text, const std::string& origin);
  static Tokenizer from_tiktoken(std::string_view text, const std::string& origin);
  static Tokenizer from_sentencepiece(std::string_view bytes, const std::string& origin);
  explicit Tokenizer(std::unique_ptr<TokenizerParts> parts);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  std::vector<int32_t> encode(std::string_view text, EncodeOptions options = {}) const;
  void encode_append(std::string_view text, EncodeOptions options, std::vector<int32_t>& ids) const;
  // All cores, same ids as encode(). One list per text.
  std::vector<std::vector<int32_t>> encode_many(std::span<const std::string_view> texts,
                                                EncodeOptions options = {}) const;
  // All cores on one long text, cut where cutting changes nothing (else one core).
  std::vector<int32_t> encode_parallel(std::string_view text, EncodeOptions options = {}) const;

  // The bytes the ids stand for. Throws on an id that is not in the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // One more than the largest id, added tokens included: the rows a model's embedding needs at least.
  int32_t vocab_size() const;
  bool has_id(int32_t id) const;
  bool is_special(int32_t id) const;
  // The token as the file writes it (byte-level ones in GPT-2's alphabet), and the bytes it stands for in the middle of
  // a text. "" for an id that is not there.
  std::string token_text(int32_t id) const;
  std::string token_bytes(int32_t id) const;
  // By content, for added tokens, or as token_text() gives it; -1 when there is none.
  int32_t token_id(std::string_view token) const;
  const SpecialIds& special_ids() const;
  void set_special_ids(const SpecialIds& ids);
  // The ids that EncodeOptions::add_special puts before and after a text; -1 for none.
  void set_surrounding_ids(int32_t before, int32_t after);
  // What the file says in short, for people: model, pattern, normalizer, number of merges and added tokens.
  std::string description() const;
  // The hand-written pattern that does all the splitting, if the file's pre-tokenizer is one of those.
  std::optional<SplitPattern> split_pattern() const;

  // As tokenizer.json, readable by the Hugging Face library, and tokenizer_config.json beside it when `path` is a
  // folder.
  void save(const std::string& path) const;
  std::string to_json() const;

  const TokenizerParts& parts() const { return *parts_; }

 private:
  std::unique_ptr<TokenizerParts> parts_;
};

// Decodes ids one by one: what is returned are whole characters only; bytes of one that is not complete are held back.
class StreamDecoder {
 public:
  enum class Invalid { replace, keep };  // bytes that are no UTF-8: U+FFFD, or as they are
  // The tokenizer must outlive it.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = false, Invalid invalid = Invalid::replace);
  std::string push(int32_t id);
  // Goes on behind these ids without returning their text: what follows a prompt keeps the space it begins with.
  void skip(std::span<const int32_t> ids);
  // What is still held back, at the end of the text.
  std::string finish();

 private:
  std::string take(bool all);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  Invalid invalid_;
  bool is_first_ = true;
  size_t strip_left_;
  std::string pending_;
};

}  // namespace sinter::tokenizer
