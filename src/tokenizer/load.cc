// Which file a path means, and the special ids that a model folder names beside the tokenizer.
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
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

void read_tokenizer_config(const std::string& path, Tokenizer& tokenizer, TokenizerParts& parts) {
  const nlohmann::json root = base::load_json(path);
  const JsonView config(root, path);
  SpecialIds ids = tokenizer.special_ids();
  auto set = [&](int32_t& id, const char* key) {
    if (int32_t found = id_of_token(tokenizer, config.find(key)); found >= 0) id = found;
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
  set(ids.bos, "bos_token_id");
  set(ids.eos, "eos_token_id");
  set(ids.pad, "pad_token_id");
  tokenizer.set_special_ids(ids);
}

}  // namespace

Tokenizer Tokenizer::load(const std::string& path) {
  fs::path file = path, folder = fs::path(path).parent_path();
  if (fs::is_directory(path)) {
    folder = path;
    file = folder / "tokenizer.json";
    if (!fs::exists(file)) file = folder / "tokenizer.model";
    SINTER_CHECK(fs::exists(file), "'{}' has neither tokenizer.json nor tokenizer.model", path);
  }
  Tokenizer tokenizer = load_file(file.string());
  if (fs::path config = folder / "tokenizer_config.json"; fs::exists(config))
    read_tokenizer_config(config.string(), tokenizer, *tokenizer.parts_);
  if (fs::path config = folder / "config.json"; fs::exists(config)) read_model_config(config.string(), tokenizer);
  return tokenizer;
}

}  // namespace sinter::tokenizer
