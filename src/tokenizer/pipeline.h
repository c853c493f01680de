// The stages around the model, as tokenizer.json describes them: normalizers, pre-tokenizers, decoders,
// post-processors.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/json_view.h"
#include "tokenizer/split_pattern.h"

namespace sinter::tokenizer {

// ---- normalizers: text to text -------------------------------------------------------------------------------------

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;
  // Whether a text may be cut after an ASCII letter and before a space, and the parts normalized on their own.
  virtual bool allows_cuts() const { return false; }
};
// Null for the JSON null.
std::unique_ptr<Normalizer> make_normalizer(const JsonView& spec);

// ---- pre-tokenizers: text to pieces --------------------------------------------------------------------------------

struct Piece {
  size_t begin, end;
};
struct Pieces {
  std::string text;
  std::vector<Piece> pieces;
  bool at_start = false;     // the text begins where the whole input begins
  bool in_alphabet = false;  // the bytes have been replaced by the characters of GPT-2's alphabet
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(Pieces& pieces) const = 0;
};

// How text between added tokens becomes pieces. `pattern` alone stands for the whole work in the usual cases; otherwise
// `steps` run one after the other.
struct PreTokenizerPlan {
  std::optional<SplitPattern> pattern;
  std::vector<std::unique_ptr<PreTokenizer>> steps;
  bool byte_level = false;  // the model's vocabulary is over bytes
};
PreTokenizerPlan make_pre_tokenizer(const JsonView& spec);

// ---- decoders: tokens to text --------------------------------------------------------------------------------------

// What the decoders of real files come to: bytes per token, and what happens at the ends.
struct DecodeRules {
  enum class ByteForm { plain, alphabet };
  ByteForm form = ByteForm::plain;  // alphabet: token strings are in GPT-2's alphabet
  bool byte_fallback = false;       // <0xXX> is that byte
  struct Replacement {
    std::string from, to;
  };
  std::vector<Replacement> replacements;  // within each token
  std::string separator;                  // between tokens (no decoder at all: a space)
  bool drop_first_space = false;          // of the first token (Metaspace)
  char strip_char = ' ';
  size_t strip_left = 0, strip_right = 0;  // of the whole text
  std::string word_suffix;                 // "</w>": a space, nothing on the last token
};
DecodeRules make_decode_rules(const JsonView& spec);

// ---- post-processors: ids put around the text's ids ----------------------------------------------------------------

struct TemplateIds {
  std::vector<int32_t> before, after;
};
TemplateIds make_template(const JsonView& spec);
// The post-processor of tokenizer.json that puts this token before every text.
nlohmann::json bos_template_json(const std::string& bos, int32_t id);

}  // namespace sinter::tokenizer
