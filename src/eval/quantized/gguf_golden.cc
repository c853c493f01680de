#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/text/hash.h"
#include "eval/golden/golden.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "io/gguf.h"
#include "models/open_model.h"
#include "tokenizer/tokenizer.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

bool same_value(const io::GgufValue& value, const json& expected) {
  if (value.is_array()) return true;  // compared through the tokenizer
  if (value.type == io::GgufType::string) return expected.is_string() && value.string() == expected.get<std::string>();
  if (value.type == io::GgufType::boolean) return expected.is_boolean() && value.boolean() == expected.get<bool>();
  return expected.is_number() && value.number() == expected.get<double>();
}

// The metadata and the table of tensors as another reader lists them.
void check_header(const io::GgufFile& file, const json& answers, CaseCounter& counter) {
  for (const auto& [key, entry] : answers.at("metadata").items()) {
    const io::GgufValue* value = file.find(key);
    counter.expect(value != nullptr, "key " + key);
    if (value && entry.contains("value")) counter.expect(same_value(*value, entry["value"]), "value of " + key);
  }
  counter.expect(file.tensors().size() == answers.at("tensors").size(), "number of tensors");
  for (const json& entry : answers["tensors"]) {
    const auto name = entry.at("name").get<std::string>();
    const io::GgufTensor* tensor = file.find_tensor(name);
    counter.expect(tensor != nullptr, "tensor " + name);
    if (!tensor) continue;
    std::vector<int64_t> dims(tensor->shape.rbegin(), tensor->shape.rend());
    counter.expect(dims == entry.at("dims").get<std::vector<int64_t>>(), "dims of " + name);
    counter.expect(tensor->type_name() == lower_case(entry.at("type").get<std::string>()), "type of " + name);
    counter.expect(tensor->offset == entry.at("offset").get<uint64_t>(), "offset of " + name);
    counter.expect(data::sha256_hex({reinterpret_cast<const char*>(tensor->bytes.data()), tensor->bytes.size()}) ==
                       entry.at("sha256").get<std::string>(),
                   "bytes of " + name);
  }
}

void check_tokens(const std::string& path, const json& cases, CaseCounter& counter) {
  const auto tokenizer = tokenizer::Tokenizer::load(path);
  for (const json& one : cases) {
    const auto text = one.at("text").get<std::string>();
    counter.expect(tokenizer.encode(text, {.add_special = true}) == one.at("ids").get<std::vector<int32_t>>(),
                   fmt::format("ids of {}", one["text"].dump()));
    counter.expect(
        tokenizer.encode(text, {.parse_special = true}) == one.at("ids_bare_parse_special").get<std::vector<int32_t>>(),
        fmt::format("ids of {} with special tokens", one["text"].dump()));
  }
}

}  // namespace

void verify_gguf_model(const std::string& path, const VerifyOptions& options, std::vector<VerifyCheck>& checks) {
  const fs::path stem = fs::path(path).parent_path() / fs::path(path).stem();
  const json answers = base::load_json(stem.string() + ".json");
  const std::string name = stem.filename().string();
  CaseCounter header(name + ": header"), tokens(name + ": tokens");
  check_header(io::GgufFile(path), answers, header);
  checks.push_back(header.check());
  if (const std::string file = (stem.parent_path() / "tokens.json").string(); fs::exists(file)) {
    check_tokens(path, base::load_json(file), tokens);
    checks.push_back(tokens.check());
  }
  if (!fs::exists(stem.string() + ".safetensors")) return;
  const io::SafetensorsFile golden(stem.string() + ".safetensors");
  ModelAnswers model{.model = path,
                     .case_name = name,
                     .logits = "exact",
                     .greedy = "greedy_exact",
                     .greedy_margin = "greedy_margin_exact",
                     .greedy_prompt = "greedy_prompt",
                     .text = (fs::weakly_canonical(stem).parent_path().parent_path() / "eval.txt").string()};
  if (answers.contains("perplexity")) model.perplexity = answers["perplexity"].at("exact").get<double>();
  verify_model_answers(model, golden, options, checks);
  if (options.device.kind != core::DeviceKind::cpu || !answers.contains("max_abs_llamacpp_minus_exact")) return;
  // Activations in 8 bits: at most half as much again as llama.cpp's own differences, which are of the same kind.
  for (const json& difference : answers["max_abs_llamacpp_minus_exact"])
    model.rounding.push_back(1.5 * difference.get<double>());
  model.case_name += ", 8-bit activations";
  verify_model_answers(model, golden, options, checks);
}

void verify_gguf_broken(const std::string& folder, std::vector<VerifyCheck>& checks) {
  const json index = base::load_json((fs::path(folder) / "index.json").string());
  CaseCounter counter(fs::path(folder).filename().string());
  for (const json& one : index) {
    const auto name = one.at("file").get<std::string>(), must = one.at("must").get<std::string>();
    const std::string path = (fs::path(folder) / name).string(), word = one.value("name", "");
    std::string error;
    try {
      if (one.at("level") == "model") {
        models::open_model(path, {});
        tokenizer::Tokenizer::load(path);
      } else {
        const io::GgufFile file(path);
      }
    } catch (const base::Error& e) {
      error = e.what();
    }
    if (must == "accept") counter.expect(error.empty(), name + " is refused: " + error);
    if (must == "refuse") counter.expect(!error.empty(), name + " is taken");
    if (error.empty()) continue;
    const std::string text = error.find(path) != std::string::npos ? error : "";
    counter.expect(!text.empty(), name + ": the message does not name the file: " + error);
    // The word has to be said of the file, not by its name.
    std::string without_path = text;
    for (size_t at; (at = without_path.find(path)) != std::string::npos;) without_path.erase(at, path.size());
    if (must == "refuse")
      counter.expect(lower_case(without_path).find(lower_case(word)) != std::string::npos,
                     name + " without '" + word + "': " + error);
  }
  checks.push_back(counter.check());
}

}  // namespace sinter::eval
