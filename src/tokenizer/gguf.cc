#include "tokenizer/gguf.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tokenizer/sentencepiece.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

using nlohmann::json;

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kTypes = "tokenizer.ggml.token_type";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kPre = "tokenizer.ggml.pre";

// Words by case as o200k has them, single digits (Mistral's Tekken).
constexpr const char* kTekkenRegex =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

// What a name of tokenizer.ggml.pre stands for.
struct Splitting {
  const char* name;
  enum Kind { byte_level, digits_and_byte_level, pattern, regex } kind;
  SplitPattern split = SplitPattern::gpt2;  // of `pattern`
  bool ignores_merges = false;
  bool adds_bos = false;  // where the file does not say
};

constexpr Splitting kSplittings[] = {
    {"gpt-2", Splitting::byte_level},
    {"phi-2", Splitting::byte_level},
    {"olmo", Splitting::byte_level},
    {"gigachat", Splitting::byte_level},
    {"llama-bpe", Splitting::pattern, SplitPattern::llama3, true, true},
    {"llama3", Splitting::pattern, SplitPattern::llama3, true, true},
    {"llama-v3", Splitting::pattern, SplitPattern::llama3, true, true},
    {"falcon3", Splitting::pattern, SplitPattern::llama3, true, true},
    {"dbrx", Splitting::pattern, SplitPattern::llama3},
    {"smaug-bpe", Splitting::pattern, SplitPattern::llama3},
    {"qwen2", Splitting::pattern, SplitPattern::qwen2},
    {"deepseek-r1-qwen", Splitting::pattern, SplitPattern::qwen2},
    {"megrez", Splitting::pattern, SplitPattern::qwen2},
    {"stablelm2", Splitting::pattern, SplitPattern::qwen2},
    {"gpt-4o", Splitting::pattern, SplitPattern::o200k},
    {"smollm", Splitting::digits_and_byte_level},
    {"starcoder", Splitting::digits_and_byte_level},
    {"refact", Splitting::digits_and_byte_level},
    {"command-r", Splitting::digits_and_byte_level},
    {"tekken", Splitting::regex, SplitPattern::o200k, true, true},
};

json split_json(const std::string& regex) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}};
}
json byte_level_json(bool splits) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", splits}};
}

json pre_tokenizer_json(const Splitting& splitting) {
  json first;
  switch (splitting.kind) {
    case Splitting::byte_level:
      return byte_level_json(true);
    case Splitting::digits_and_byte_level:
      first = {{"type", "Digits"}, {"individual_digits", true}};
      break;
    case Splitting::pattern:
      first = split_json(std::string(pattern_regex(splitting.split)));
      break;
    case Splitting::regex:
      first = split_json(kTekkenRegex);
      break;
  }
  const bool splits_more = splitting.kind == Splitting::digits_and_byte_level;
  return {{"type", "Sequence"}, {"pretokenizers", {first, byte_level_json(splits_more)}}};
}

const Splitting& find_splitting(const io::GgufFile& file) {
  const std::string name = file.text(kPre, "");
  for (const Splitting& splitting : kSplittings) {
    if (name == splitting.name) return splitting;
  }
  std::string known;
  for (const std::string& other : known_pre_names()) known += (known.empty() ? "" : ", ") + other;
  base::fail("'{}': key '{}' is '{}', which names no split pattern that is known; known: {}", file.path(), kPre, name,
             known);
}

// The tokens and what each is (PieceType).
struct Vocab {
  std::vector<std::string_view> tokens;
  std::vector<uint64_t> types;
};

Vocab read_vocab(const io::GgufFile& file) {
  Vocab vocab{file.strings(kTokens), {}};
  SINTER_CHECK(!vocab.tokens.empty() && vocab.tokens.size() <= static_cast<size_t>(Vocabulary::kMaxId),
               "'{}': key '{}' lists {} tokens; expected 1 to {}", file.path(), kTokens, vocab.tokens.size(),
               Vocabulary::kMaxId);
  vocab.types.assign(vocab.tokens.size(), kNormal);
  if (!file.find(kTypes)) return vocab;
  const std::vector<double> types = file.numbers(kTypes);
  SINTER_CHECK(types.size() == vocab.tokens.size(), "'{}': key '{}' has {} elements for {} tokens", file.path(), kTypes,
               types.size(), vocab.tokens.size());
  for (size_t i = 0; i < types.size(); ++i) {
    SINTER_CHECK(types[i] >= 1.0 && types[i] <= 6.0, "'{}': key '{}': token {} has the type {}; expected 1 to 6",
                 file.path(), kTypes, i, types[i]);
    vocab.types[i] = static_cast<uint64_t>(types[i]);
  }
  return vocab;
}

// An id that a key names, or -1.
int32_t read_id(const io::GgufFile& file, const char* name, size_t num_tokens) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  if (!file.find(key)) return -1;
  const int64_t id = file.integer(key);
  SINTER_CHECK(id >= 0 && id < static_cast<int64_t>(num_tokens), "'{}': key '{}' is {}, but there are {} tokens",
               file.path(), key, id, num_tokens);
  return static_cast<int32_t>(id);
}

Tokenizer make_sentencepiece(const io::GgufFile& file, const Vocab& vocab) {
  SpModel model;
  model.has_trainer = true;
  model.cuts_specials_first = true;
  model.model_type = 2;
  model.unk_id = model.bos_id = model.eos_id = -1;
  model.remove_extra_whitespaces = file.boolean("tokenizer.ggml.remove_extra_whitespaces", false);
  model.add_dummy_prefix = file.boolean("tokenizer.ggml.add_space_prefix", true);
  const std::vector<double> scores = file.numbers(kScores);
  SINTER_CHECK(scores.size() == vocab.tokens.size(), "'{}': key '{}' has {} elements for {} tokens", file.path(),
               kScores, scores.size(), vocab.tokens.size());
  for (size_t i = 0; i < scores.size(); ++i) {
    model.pieces.push_back({vocab.tokens[i], static_cast<float>(scores[i]), vocab.types[i]});
    model.byte_fallback = model.byte_fallback || vocab.types[i] == kByte;
  }
  return make_sentencepiece_tokenizer(model, file.path());
}

void read_merges(const io::GgufFile& file, BpeModel& model) {
  const std::vector<std::string_view> merges = file.strings(kMerges);
  model.merges.reserve(merges.size());
  std::string bytes;
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ', 1);  // a token may begin with a space in no alphabet
    SINTER_CHECK(space != std::string_view::npos && space + 1 < merges[i].size(),
                 "'{}': key '{}': merge {} is '{}'; expected two tokens with a space between", file.path(), kMerges, i,
                 merges[i]);
    auto id_of = [&](std::string_view token) {
      const int32_t id = alphabet_to_bytes(token, bytes) ? model.vocabulary.find(bytes) : -1;
      SINTER_CHECK(id >= 0, "'{}': key '{}': merge {} needs the token '{}', which is not in the vocabulary",
                   file.path(), kMerges, i, token);
      return id;
    };
    const std::string_view left = merges[i].substr(0, space), right = merges[i].substr(space + 1);
    const std::string joined = std::string(left) + std::string(right);
    model.merges.add(id_of(left), id_of(right), {static_cast<uint32_t>(i), id_of(joined)}, true);
  }
}

Tokenizer make_byte_level(const io::GgufFile& file, const Vocab& vocab, const Splitting& splitting) {
  auto parts = std::make_unique<TokenizerParts>();
  parts->origin = file.path();
  BpeModel& model = parts->model;
  model.over_bytes = true;
  model.ignore_merges = splitting.ignores_merges;
  std::string bytes;
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string token(vocab.tokens[i]);
    const bool is_plain = vocab.types[i] == kNormal && alphabet_to_bytes(token, bytes);
    SINTER_CHECK(model.vocabulary.add(id, is_plain ? bytes : token, !is_plain), "'{}': key '{}': '{}' is there twice",
                 file.path(), kTokens, token);
    if (vocab.types[i] == kControl || vocab.types[i] == kUserDefined || vocab.types[i] == kUnknown) {
      SINTER_CHECK(!token.empty(), "'{}': key '{}': token {} is empty", file.path(), kTokens, i);
      parts->added.push_back({.id = id, .content = token, .special = vocab.types[i] != kUserDefined});
    }
  }
  read_merges(file, model);
  model.finish();
  parts->pre_tokenizer_json = pre_tokenizer_json(splitting).dump();
  parts->decoder_json = json{{"type", "ByteLevel"}}.dump();
  parts->finish();
  return Tokenizer(std::move(parts));
}

}  // namespace

Tokenizer tokenizer_from_gguf(const io::GgufFile& file) {
  SINTER_CHECK(file.find("tokenizer.ggml.model"),
               "'{}' has no key 'tokenizer.ggml.model': there is no tokenizer in it; name one with --tokenizer",
               file.path());
  const std::string kind = file.text("tokenizer.ggml.model");
  SINTER_CHECK(kind == "llama" || kind == "gpt2",
               "'{}': key 'tokenizer.ggml.model' is '{}'; tokenizers of the kinds llama and gpt2 are read", file.path(),
               kind);
  const Vocab vocab = read_vocab(file);
  const Splitting* splitting = kind == "gpt2" ? &find_splitting(file) : nullptr;
  Tokenizer tokenizer = splitting ? make_byte_level(file, vocab, *splitting) : make_sentencepiece(file, vocab);
  const size_t count = vocab.tokens.size();
  const SpecialIds ids{read_id(file, "bos", count), read_id(file, "eos", count), read_id(file, "padding", count),
                       read_id(file, "unknown", count)};
  tokenizer.set_special_ids(ids);
  const bool adds_bos = file.boolean("tokenizer.ggml.add_bos_token", splitting ? splitting->adds_bos : true);
  const bool adds_eos = file.boolean("tokenizer.ggml.add_eos_token", false);
  tokenizer.set_surrounding_ids(adds_bos ? ids.bos : -1, adds_eos ? ids.eos : -1);
  return tokenizer;
}

std::map<std::string, std::string> chat_templates_of(const io::GgufFile& file) {
  constexpr std::string_view kKey = "tokenizer.chat_template";
  std::map<std::string, std::string> found;
  for (const auto& [key, value] : file.header().metadata) {
    if (!key.starts_with(kKey) || value.type != io::GgufType::string) continue;
    if (key == kKey) found["default"] = value.string();
    if (key.size() > kKey.size() + 1 && key[kKey.size()] == '.') found[key.substr(kKey.size() + 1)] = value.string();
  }
  return found;
}

std::map<std::string, std::string> special_tokens_of(const io::GgufFile& file) {
  std::map<std::string, std::string> found;
  if (!file.find(kTokens)) return found;
  const std::vector<std::string_view> tokens = file.strings(kTokens);
  for (auto [name, key] :
       {std::pair{"bos_token", "bos"}, {"eos_token", "eos"}, {"unk_token", "unknown"}, {"pad_token", "padding"}}) {
    if (const int32_t id = read_id(file, key, tokens.size()); id >= 0) found[name] = tokens[static_cast<size_t>(id)];
  }
  return found;
}

std::vector<int64_t> end_tokens_of(const io::GgufFile& file) {
  std::vector<int64_t> ids;
  if (!file.find(kTokens)) return ids;
  const Vocab vocab = read_vocab(file);
  auto add = [&](int64_t id) {
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const char* name : {"eos", "eot", "eom"}) add(read_id(file, name, vocab.tokens.size()));
  if (ids.empty()) return ids;
  constexpr std::string_view kEnds[] = {"<|eot_id|>",    "<|im_end|>",    "<|end|>",
                                        "<end_of_turn>", "<|endoftext|>", "<|eom_id|>"};
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    if (vocab.types[i] == kControl && std::find(std::begin(kEnds), std::end(kEnds), vocab.tokens[i]) != std::end(kEnds))
      add(static_cast<int64_t>(i));
  }
  return ids;
}

std::vector<std::string> known_pre_names() {
  std::vector<std::string> names;
  for (const Splitting& splitting : kSplittings) names.emplace_back(splitting.name);
  return names;
}

std::string pre_name_of(const Tokenizer& tokenizer) {
  const TokenizerParts& parts = tokenizer.parts();
  const json pre = json::parse(parts.pre_tokenizer_json);
  for (const Splitting& splitting : kSplittings) {
    const bool same_merges = splitting.ignores_merges == parts.model.ignore_merges;
    if (splitting.kind == Splitting::pattern) {
      if (parts.pre_tokenizer.pattern == splitting.split && parts.pre_tokenizer.steps.empty() && same_merges)
        return splitting.name;
    } else if (splitting.kind == Splitting::byte_level) {
      if (parts.pre_tokenizer.pattern == SplitPattern::gpt2 && same_merges) return splitting.name;
    } else if (pre == pre_tokenizer_json(splitting) && same_merges) {
      return splitting.name;
    }
  }
  return "";
}

}  // namespace sinter::tokenizer
