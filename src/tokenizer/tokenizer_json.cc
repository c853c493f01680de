// tokenizer.json: reading it, and writing any tokenizer in its form.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/json_view.h"
#include "tokenizer/tokenizer_parts.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

int32_t read_id(const JsonView& value) { return static_cast<int32_t>(value.integer(0, Vocabulary::kMaxId)); }

// The two loops below run over hundreds of thousands of entries, so they make a JsonView, with its key, for complaints
// only.

void read_vocabulary(const JsonView& spec, BpeModel& model) {
  if (!spec.is_object()) spec.fail("expected an object of tokens and ids");
  std::string bytes;
  for (auto it = spec.value().begin(); it != spec.value().end(); ++it) {
    const std::string& token = it.key();
    const bool is_id = it.value().is_number_unsigned() && it.value().get<uint64_t>() <= Vocabulary::kMaxId;
    const int32_t id = is_id ? it.value().get<int32_t>() : read_id(spec.at(token));
    if (model.vocabulary.has(id)) spec.at(token).fail(fmt::format("the id {} is given to a second token", id));
    if (!model.over_bytes) {
      model.vocabulary.add(id, token);
    } else if (alphabet_to_bytes(token, bytes)) {
      model.vocabulary.add(id, bytes);
    } else {
      model.vocabulary.add(id, token, true);  // not byte-level: no text leads to it
    }
  }
}

// The two tokens of a merge, "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> read_pair(const JsonView& spec, size_t index) {
  const nlohmann::json& merge = spec.value()[index];
  if (merge.is_array()) {
    const bool is_pair = merge.size() == 2 && merge[0].is_string() && merge[1].is_string();
    if (!is_pair) spec.element(index).fail("expected two tokens");
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  const std::string_view text = merge.is_string() ? merge.get_ref<const std::string&>() : spec.element(index).string();
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == text.size() ||
      text.find(' ', space + 1) != std::string_view::npos) {
    spec.element(index).fail(fmt::format("'{}' found, expected two tokens with a space between", text));
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

void read_merges(const JsonView& spec, BpeModel& model) {
  const size_t count = spec.size();
  model.merges.reserve(count);
  std::string joined, bytes;
  for (size_t i = 0; i < count; ++i) {
    auto id_of = [&](std::string_view token) {
      int32_t id = -1;
      if (!model.over_bytes) {
        id = model.vocabulary.find(token);
      } else if (alphabet_to_bytes(token, bytes)) {
        id = model.vocabulary.find(bytes);
      }
      if (id < 0) spec.element(i).fail(fmt::format("the token '{}' is not in model.vocab", token));
      return id;
    };
    const auto [left, right] = read_pair(spec, i);
    if (!right.starts_with(model.continuing_prefix)) {
      spec.element(i).fail(fmt::format("'{}' does not begin with continuing_subword_prefix", right));
    }
    joined = left;
    joined += right.substr(model.continuing_prefix.size());
    constexpr bool kReplaces = true;  // of a pair that is there twice the last counts
    model.merges.add(id_of(left), id_of(right), {static_cast<uint32_t>(i), id_of(joined)}, kReplaces);
  }
}

void read_model(const JsonView& spec, TokenizerParts& parts) {
  const std::string type = spec.string_or("type", "BPE");
  if (type != "BPE") spec.at("type").fail("the model '" + type + "' is not supported (BPE is)");
  spec.check_keys({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                   "byte_fallback", "ignore_merges", "vocab", "merges"});
  BpeModel& model = parts.model;
  if (auto dropout = spec.find("dropout"); dropout && dropout->number() != 0)
    dropout->fail("dropout is not supported when encoding");
  model.byte_fallback = spec.boolean_or("byte_fallback", false);
  model.fuse_unknown = spec.boolean_or("fuse_unk", false);
  model.ignore_merges = spec.boolean_or("ignore_merges", false);
  model.continuing_prefix = spec.string_or("continuing_subword_prefix", "");
  model.end_suffix = spec.string_or("end_of_word_suffix", "");
  if (model.over_bytes && !(model.continuing_prefix.empty() && model.end_suffix.empty())) {
    spec.fail("continuing_subword_prefix and end_of_word_suffix are not supported with a ByteLevel pre-tokenizer");
  }
  read_vocabulary(spec.at("vocab"), model);
  read_merges(spec.at("merges"), model);
  if (auto unknown = spec.find("unk_token")) {
    // A token that stands only among the added ones still has an id there.
    std::string bytes = unknown->string();
    if (model.over_bytes) alphabet_to_bytes(unknown->string(), bytes);
    model.unknown_id = model.vocabulary.find(bytes);
  }
  model.finish();
}

void read_added_tokens(const JsonView& list, TokenizerParts& parts) {
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonView spec = list.element(i);
    spec.check_keys({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token{.id = read_id(spec.at("id")), .content = spec.at("content").string()};
    token.special = spec.boolean_or("special", false);
    token.normalized = spec.boolean_or("normalized", !token.special);
    token.lstrip = spec.boolean_or("lstrip", false);
    token.rstrip = spec.boolean_or("rstrip", false);
    token.single_word = spec.boolean_or("single_word", false);
    parts.added.push_back(std::move(token));
  }
}

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Merges in the order in which they apply: by rank, and those of one rank (one token made in several ways) by their
// parts.
std::vector<std::pair<int32_t, int32_t>> ordered_merges(const MergeTable& merges) {
  std::vector<std::tuple<uint32_t, int32_t, int32_t>> all;
  all.reserve(merges.size());
  merges.for_each([&](int32_t left, int32_t right, const Merge& merge) { all.emplace_back(merge.rank, left, right); });
  std::sort(all.begin(), all.end());
  std::vector<std::pair<int32_t, int32_t>> pairs;
  pairs.reserve(all.size());
  for (auto& [rank, left, right] : all) pairs.emplace_back(left, right);
  return pairs;
}

std::string vocabulary_text(const BpeModel& model, int32_t id) {
  const std::string_view bytes = model.vocabulary.bytes(id);
  return model.over_bytes && !model.vocabulary.is_hidden(id) ? bytes_to_alphabet(bytes) : std::string(bytes);
}

std::string model_to_json(const TokenizerParts& parts) {
  const BpeModel& model = parts.model;
  auto flag = [](bool value) { return value ? "true" : "false"; };
  auto text_or_null = [](const std::string& text) { return text.empty() ? std::string("null") : json_string(text); };
  std::string out = "{\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": ";
  out += model.unknown_id >= 0 ? json_string(vocabulary_text(model, model.unknown_id)) : "null";
  out += fmt::format(
      ",\n    \"continuing_subword_prefix\": {},\n    \"end_of_word_suffix\": {},\n    \"fuse_unk\": {},\n"
      "    \"byte_fallback\": {},\n    \"ignore_merges\": {},\n    \"vocab\": {{",
      text_or_null(model.continuing_prefix), text_or_null(model.end_suffix), flag(model.fuse_unknown),
      flag(model.byte_fallback), flag(model.ignore_merges));
  const char* comma = "\n      ";
  bool has_space = false;
  std::vector<std::string> texts(static_cast<size_t>(model.vocabulary.size()));
  for (int32_t id = 0; id < model.vocabulary.size(); ++id) {
    if (!model.vocabulary.has(id)) continue;
    std::string& text = texts[static_cast<size_t>(id)] = vocabulary_text(model, id);
    has_space = has_space || text.find(' ') != std::string::npos;
    out += fmt::format("{}{}: {}", comma, json_string(text), id);
    comma = ",\n      ";
  }
  out += "\n    },\n    \"merges\": [";
  comma = "\n      ";
  for (auto [left, right] : ordered_merges(model.merges)) {
    const std::string &l = texts[static_cast<size_t>(left)], &r = texts[static_cast<size_t>(right)];
    // The older form, one string with a space, is read by every version of the library but cannot hold spaces.
    out += comma;
    out += has_space ? fmt::format("[{}, {}]", json_string(l), json_string(r)) : json_string(l + " " + r);
    comma = ",\n      ";
  }
  return out + "\n    ]\n  }";
}

}  // namespace

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& origin) {
  const nlohmann::json root = base::parse_json(text, origin);
  const JsonView file(root, origin);
  SINTER_CHECK(
      !root.is_object() || root.contains("model"),
      "'{}' is no tokenizer.json: it has no key 'model' (vocab.json with merges.txt is not read; transformers' "
      "save_pretrained writes a tokenizer.json)",
      origin);
  file.check_keys({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
  auto parts = std::make_unique<TokenizerParts>();
  parts->origin = origin;
  auto stage = [&](const char* key, std::string& json) {
    if (auto spec = file.find(key)) json = spec->value().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  };
  stage("normalizer", parts->normalizer_json);
  stage("pre_tokenizer", parts->pre_tokenizer_json);
  stage("post_processor", parts->post_processor_json);
  stage("decoder", parts->decoder_json);
  if (auto spec = file.find("pre_tokenizer")) parts->model.over_bytes = make_pre_tokenizer(*spec).byte_level;
  read_model(file.at("model"), *parts);
  if (auto list = file.find("added_tokens")) read_added_tokens(*list, *parts);
  parts->finish();
  return Tokenizer(std::move(parts));
}

std::string Tokenizer::to_json() const {
  const TokenizerParts& parts = *parts_;
  std::string out = "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  auto flag = [](bool value) { return value ? "true" : "false"; };
  const char* comma = "\n    ";
  for (const AddedToken& token : parts.added) {
    out += fmt::format(
        "{}{{\"id\": {}, \"content\": {}, \"single_word\": {}, \"lstrip\": {}, \"rstrip\": {}, \"normalized\": {}, "
        "\"special\": {}}}",
        comma, token.id, json_string(token.content), flag(token.single_word), flag(token.lstrip), flag(token.rstrip),
        flag(token.normalized), flag(token.special));
    comma = ",\n    ";
  }
  out += fmt::format(
      "\n  ],\n  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n  \"decoder\": {},\n",
      parts.normalizer_json, parts.pre_tokenizer_json, parts.post_processor_json, parts.decoder_json);
  return out + "  \"model\": " + model_to_json(parts) + "\n}\n";
}

void Tokenizer::save(const std::string& path) const {
  const bool is_folder = !path.ends_with(".json");
  if (is_folder) base::create_folders(path);
  base::write_file_atomic(is_folder ? path + "/tokenizer.json" : path, to_json());
  if (!is_folder) return;
  const SpecialIds& ids = special_ids();
  nlohmann::json config{{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
  for (auto [key, id] :
       {std::pair{"bos_token", ids.bos}, {"eos_token", ids.eos}, {"pad_token", ids.pad}, {"unk_token", ids.unk}}) {
    if (id >= 0) config[key] = token_text(id);
  }
  base::save_json(path + "/tokenizer_config.json", config);
}

std::string Tokenizer::description() const {
  const TokenizerParts& parts = *parts_;
  std::string pattern = parts.pre_tokenizer.pattern         ? std::string(pattern_name(*parts.pre_tokenizer.pattern))
                        : parts.pre_tokenizer.steps.empty() ? "none"
                                                            : fmt::format("{} steps", parts.pre_tokenizer.steps.size());
  return fmt::format("{} BPE, {} tokens, {} merges, {} added token{}, split: {}, normalizer: {}",
                     parts.model.over_bytes ? "byte-level" : "character", vocab_size(), parts.model.merges.size(),
                     parts.added.size(), parts.added.size() == 1 ? "" : "s", pattern,
                     parts.normalizer ? "yes" : "none");
}

}  // namespace sinter::tokenizer
