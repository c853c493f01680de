// .tiktoken files: one token per line, base64 and rank. The file names neither its split pattern nor its special
// tokens; both follow from which of the public vocabularies it is.
#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/merges_from_ranks.h"
#include "tokenizer/tokenizer_parts.h"

namespace sinter::tokenizer {
namespace {

struct NamedId {
  int32_t id;
  std::string content;
};

struct KnownFile {
  std::string_view name;
  int32_t tokens;  // lines of the file
  SplitPattern pattern;
  std::vector<NamedId> specials;
};

std::vector<NamedId> llama3_specials() {
  std::vector<NamedId> all;
  int32_t id = 128000;
  for (const char* name :
       {"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
        "<|reserved_special_token_2|>", "<|reserved_special_token_3|>", "<|start_header_id|>", "<|end_header_id|>",
        "<|reserved_special_token_4|>", "<|eot_id|>"}) {
    all.push_back({id++, name});
  }
  for (int n = 5; id < 128256; ++n) all.push_back({id++, fmt::format("<|reserved_special_token_{}|>", n)});
  return all;
}

const std::vector<KnownFile>& known_files() {
  static const std::vector<KnownFile> files{
      {"r50k_base", 50256, SplitPattern::gpt2, {{50256, "<|endoftext|>"}}},
      {"p50k_base", 50280, SplitPattern::gpt2, {{50256, "<|endoftext|>"}}},
      {"cl100k_base",
       100256,
       SplitPattern::cl100k,
       {{100257, "<|endoftext|>"},
        {100258, "<|fim_prefix|>"},
        {100259, "<|fim_middle|>"},
        {100260, "<|fim_suffix|>"},
        {100276, "<|endofprompt|>"}}},
      {"o200k_base", 199998, SplitPattern::o200k, {{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}}},
      {"llama3", 128000, SplitPattern::llama3, llama3_specials()},
      {"qwen",
       151643,
       SplitPattern::qwen2,
       {{151643, "<|endoftext|>"}, {151644, "<|im_start|>"}, {151645, "<|im_end|>"}}},
  };
  return files;
}

const KnownFile& recognise(const std::string& origin, int32_t tokens) {
  const std::string stem = std::filesystem::path(origin).stem().string();
  std::string known;
  for (const KnownFile& file : known_files()) {
    if (stem == file.name) {
      SINTER_CHECK(tokens == file.tokens, "'{}' has {} tokens, but {} has {}: the file is cut off or altered", origin,
                   tokens, file.name, file.tokens);
      return file;
    }
  }
  for (const KnownFile& file : known_files()) {
    if (tokens == file.tokens) return file;
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", file.name, file.tokens);
  }
  base::fail(
      "'{}' has {} tokens, which is none of the vocabularies whose split pattern is known: {}. Use the model's "
      "tokenizer.json instead",
      origin, tokens, known);
}

// False when the text is not base64.
bool decode_base64(std::string_view text, std::string& bytes) {
  static constexpr auto kValues = [] {
    std::array<int8_t, 256> values{};
    values.fill(-1);
    for (int i = 0; i < 64; ++i) {
      values[static_cast<unsigned char>("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"[i])] =
          static_cast<int8_t>(i);
    }
    return values;
  }();
  bytes.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  const size_t padding = text.ends_with("==") ? 2 : text.ends_with("=") ? 1 : 0;
  uint32_t bits = 0;
  int count = 0;
  for (char c : text.substr(0, text.size() - padding)) {
    const int8_t value = kValues[static_cast<unsigned char>(c)];
    if (value < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(value);
    if (++count % 4 == 0) {
      for (int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift);
      bits = 0;
    }
  }
  if (padding == 1) {
    bytes += static_cast<char>(bits >> 10);
    bytes += static_cast<char>(bits >> 2);
  } else if (padding == 2) {
    bytes += static_cast<char>(bits >> 4);
  }
  return true;
}

}  // namespace

Tokenizer Tokenizer::from_tiktoken(std::string_view text, const std::string& origin) {
  auto parts = std::make_unique<TokenizerParts>();
  parts->origin = origin;
  BpeModel& model = parts->model;
  model.over_bytes = model.ignore_merges = true;
  std::string bytes;
  size_t line_number = 0;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = std::min(text.find('\n', pos), text.size());
    std::string_view line = text.substr(pos, end - pos);
    pos = end + 1;
    ++line_number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    int32_t rank = -1;
    bool ok = space != std::string_view::npos && decode_base64(line.substr(0, space), bytes);
    if (ok) {
      const char* last = line.data() + line.size();
      auto [stop, error] = std::from_chars(line.data() + space + 1, last, rank);
      ok = error == std::errc() && stop == last && rank >= 0 && rank <= Vocabulary::kMaxId;
    }
    SINTER_CHECK(ok, "'{}' line {}: expected a base64 token, a space and its rank (cut off or not a .tiktoken file)",
                 origin, line_number);
    SINTER_CHECK(bytes.size() <= kMaxTokenBytes, "'{}' line {}: a token of {} bytes; expected at most {}", origin,
                 line_number, bytes.size(), kMaxTokenBytes);
    SINTER_CHECK(model.vocabulary.add(rank, bytes), "'{}' line {}: the token or its rank {} is there twice", origin,
                 line_number, rank);
  }
  const KnownFile& known = recognise(origin, model.vocabulary.count());
  model.finish();
  for (int b = 0; b < 256; ++b) {
    SINTER_CHECK(model.byte_ids[static_cast<size_t>(b)] >= 0, "'{}' has no token for the single byte 0x{:02X}", origin,
                 b);
  }
  add_merges_from_ranks(model, [](int32_t id) { return static_cast<uint32_t>(id); });
  for (const NamedId& special : known.specials) {
    parts->added.push_back({.id = special.id, .content = special.content, .special = true});
    if (special.content == "<|endoftext|>" || special.content == "<|end_of_text|>") parts->special_ids.eos = special.id;
    if (special.content == "<|begin_of_text|>") parts->special_ids.bos = special.id;
  }
  const nlohmann::json split{{"type", "Split"},
                             {"pattern", {{"Regex", pattern_regex(known.pattern)}}},
                             {"behavior", "Isolated"},
                             {"invert", false}};
  const nlohmann::json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  parts->pre_tokenizer_json = nlohmann::json{{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}}.dump();
  parts->decoder_json = byte_level.dump();
  parts->post_processor_json = byte_level.dump();
  parts->finish();
  return Tokenizer(std::move(parts));
}

}  // namespace sinter::tokenizer
