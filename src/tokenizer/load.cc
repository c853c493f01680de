// Which file a path means, and the special ids that a model folder names beside the tokenizer.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "io/gguf.h"
#include "tokenizer/gguf.h"
#include "tokenizer/json_view.h"
#include "tokenizer/tokenizer_parts.h"

namespace sinter::tokenizer {
namespace {

namespace fs = std::filesystem;

// Whether the first line is base64, a space and a number: Llama 3 ships such a file under the name tokenizer.model.
bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, std::min<size_t>(bytes.find('\n'), 2000));
  const size_t space = line.find(' ');
  if (space == std::string_view::npos || space == 0) return false;
  const auto only = [](std::string_view text, std::string_view allowed) {
    return text.find_first_not_of(allowed) == std::string_view::npos;
  };
  return only(line.substr(0, space), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") &&
         only(line.substr(space + 1), "0123456789\r");
}

Tokenizer load_file(const std::string& path) {
  const std::string extension = fs::path(path).extension().string();
  const std::string bytes = base::read_file(path);
  SINTER_CHECK(fs::path(path).filename() != "vocab.json",
               "'{}' holds the words of a tokenizer without its merges; expected tokenizer.json, which holds both",
               path);
  if (extension == ".json") return Tokenizer::from_json(bytes, path);
  if (extension == ".tiktoken" || looks_like_tiktoken(bytes)) return Tokenizer::from_tiktoken(bytes, path);
  if (extension == ".model") return Tokenizer::from_sentencepiece(bytes, path);
  base::fail("'{}' is not a tokenizer file: expected tokenizer.json, *.tiktoken or *.model", path);
}

// "</s>", or {"content": "</s>", ...}.
int32_t id_of_token(const Tokenizer& tokenizer, const std::optional<JsonView>& value) {
  if (!value) return -1;
  return tokenizer.token_id(value->is_object() ? value->at("content").string() : value->string());
}

// Tokens that stand beside the tokenizer's own file: in tokenizer_config.json by id with their properties, in
// added_tokens.json by text. What the file has already stays as it says.
void add_tokens_beside(const fs::path& folder, TokenizerParts& parts) {
  const size_t before = parts.added.size();
  auto add = [&](AddedToken token) {
    const int32_t known = parts.model.vocabulary.find(token.content);
    if (token.content.empty() || (known >= 0 && known != token.id)) return;
    const bool is_new = std::none_of(parts.added.begin(), parts.added.end(), [&](const AddedToken& other) {
      return other.id == token.id || other.content == token.content;
    });
    if (is_new) parts.added.push_back(std::move(token));
  };
  if (const fs::path path = folder / "tokenizer_config.json"; fs::exists(path)) {
    const nlohmann::json root = base::load_json(path.string());
    const JsonView config(root, path.string());
    if (const auto tokens = config.find("added_tokens_decoder"); tokens && tokens->is_object()) {
      tokens->for_each_member([&](const std::string& id, const JsonView& token) {
        int32_t number = -1;
        const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
        if (error != std::errc() || end != id.data() + id.size()) token.fail("its key is not a token id");
        add({.id = number,
             .content = token.at("content").string(),
             .special = token.boolean_or("special", false),
             .normalized = token.boolean_or("normalized", false),
             .lstrip = token.boolean_or("lstrip", false),
             .rstrip = token.boolean_or("rstrip", false),
             .single_word = token.boolean_or("single_word", false)});
      });
    }
  }
  if (const fs::path path = folder / "added_tokens.json"; fs::exists(path)) {
    const nlohmann::json root = base::load_json(path.string());
    JsonView(root, path.string()).for_each_member([&](const std::string& content, const JsonView& id) {
      add({.id = static_cast<int32_t>(id.integer(0, Vocabulary::kMaxId)), .content = content});
    });
  }
  if (parts.added.size() > before) parts.finish();
}

void read_tokenizer_config(const std::string& path, Tokenizer& tokenizer, TokenizerParts& parts) {
  const nlohmann::json root = base::load_json(path);
  const JsonView config(root, path);
  SpecialIds ids = tokenizer.special_ids();
  auto set = [&](int32_t& id, const char* key) {
    const std::optional<JsonView> token = config.find(key);
    if (int32_t found = id_of_token(tokenizer, token); found >= 0) {
      id = found;
    } else if (token) {
      base::log_warning("'{}': the tokenizer has no token that '{}' names", path, key);
    }
  };
  set(ids.bos, "bos_token");
  set(ids.eos, "eos_token");
  set(ids.pad, "pad_token");
  set(ids.unk, "unk_token");
  tokenizer.set_special_ids(ids);
  // For Llama's classes these two keys decide, whatever the post-processor of tokenizer.json says.
  const std::string kind = config.string_or("tokenizer_class", "");
  if (!kind.starts_with("Llama") && !kind.starts_with("CodeLlama") && !kind.starts_with("Gemma")) return;
  auto decide = [&](const char* key, int32_t id, std::vector<int32_t>& around) {
    if (auto flag = config.find(key); flag && id >= 0)
      around = flag->boolean() ? std::vector{id} : std::vector<int32_t>{};
  };
  decide("add_bos_token", ids.bos, parts.around.before);
  decide("add_eos_token", ids.eos, parts.around.after);
}

// Whether tokenizer_config.json says that there is no BOS (Qwen), whatever config.json names.
bool denies_bos(const fs::path& path) {
  if (!fs::exists(path)) return false;
  const nlohmann::json root = base::load_json(path.string());
  return root.is_object() && root.contains("bos_token") && root["bos_token"].is_null();
}

// config.json fills what tokenizer_config.json left open.
void read_model_config(const std::string& path, Tokenizer& tokenizer) {
  const nlohmann::json root = base::load_json(path);
  const JsonView config(root, path);
  SpecialIds ids = tokenizer.special_ids();
  auto set = [&](int32_t& id, const char* key) {
    auto value = config.find(key);
    if (id >= 0 || !value || (value->is_array() && value->size() == 0)) return;
    const JsonView first = value->is_array() ? value->element(0) : *value;  // eos_token_id may be a list
    const auto found = static_cast<int32_t>(first.integer(-1, INT32_MAX));
    if (tokenizer.has_id(found)) id = found;
  };
  if (!denies_bos(fs::path(path).parent_path() / "tokenizer_config.json")) set(ids.bos, "bos_token_id");
  set(ids.eos, "eos_token_id");
  set(ids.pad, "pad_token_id");
  tokenizer.set_special_ids(ids);
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& path) {
  if (io::is_gguf(path)) return tokenizer_from_gguf(io::GgufFile(path));
  fs::path file = path, folder = fs::path(path).parent_path();
  if (fs::is_directory(path)) {
    folder = path;
    file = folder / "tokenizer.json";
    if (!fs::exists(file)) file = folder / "tokenizer.model";
    SINTER_CHECK(fs::exists(file), "'{}' has neither tokenizer.json nor tokenizer.model", path);
  }
  Tokenizer tokenizer = load_file(file.string());
  add_tokens_beside(folder, *tokenizer.parts_);
  if (fs::path config = folder / "tokenizer_config.json"; fs::exists(config))
    read_tokenizer_config(config.string(), tokenizer, *tokenizer.parts_);
  if (fs::path config = folder / "config.json"; fs::exists(config)) read_model_config(config.string(), tokenizer);
  return tokenizer;
}

}  // namespace sinter::tokenizer
