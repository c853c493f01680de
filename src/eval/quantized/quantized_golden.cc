#include "eval/quantized/quantized_golden.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "eval/quantized/golden_tensors.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

struct Case {
  enum Kind { gguf_model, gguf_unstored, gguf_broken, quantized_folder, blocks, packing, fp4, kv } kind;
  std::string path;
};

// Null when the file is not there or not JSON.
json try_load(const fs::path& file) {
  try {
    if (fs::exists(file)) return base::load_json(file.string());
  } catch (const base::Error&) {
  }
  return nullptr;
}

// Logits by prompt, as the quantized folders and their base have them.
bool has_prompts(const fs::path& file) {
  try {
    const io::SafetensorsFile golden(file.string());
    return golden.find("prompt0") && golden.find("logits0");
  } catch (const base::Error&) {
    return false;
  }
}

bool is_quantized_folder(const fs::path& folder) {
  if (!fs::exists(folder / "golden.json") || !fs::exists(folder / "config.json")) return false;
  const json answers = try_load(folder / "golden.json");
  if (answers.is_object() && answers.contains("dequantized_sha256")) return true;
  const json config = try_load(folder / "config.json");
  if (config.is_object() && config.contains("quantization_config")) return true;  // its answers cannot be read
  return fs::exists(folder / "golden.safetensors") && has_prompts(folder / "golden.safetensors");
}

bool is_broken_folder(const fs::path& folder) {
  if (!fs::exists(folder / "index.json")) return false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") return true;
  }
  return false;
}

// Answers of a model's file; not of an adapter's.
bool is_model(const json& answers) {
  return answers.is_object() && answers.contains("metadata") && !answers["metadata"].contains("adapter.type");
}

bool is_adapter(const json& answers) {
  return answers.is_object() && answers.contains("metadata") && answers["metadata"].contains("adapter.type");
}

// Read beside a case, or figures that no check is made of.
bool is_side_file(const std::string& name) {
  static const char* const names[] = {"tokens.json",  "vocab.json",     "speeds.json",
                                      "quality.json", "tokenizer.json", "tokenizer_config.json"};
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

// Cases of a folder and those below it, and files that look like answers but belong to none.
class CaseFinder {
 public:
  explicit CaseFinder(const fs::path& folder) { look(folder); }
  std::vector<Case> cases;
  std::vector<std::string> unknown;

 private:
  void look(const fs::path& folder) {
    if (!fs::is_directory(folder)) return;
    if (is_quantized_folder(folder)) return cases.push_back({Case::quantized_folder, folder.string()});
    if (is_broken_folder(folder)) return cases.push_back({Case::gguf_broken, folder.string()});
    if (fs::exists(folder / "adapter_config.json")) return;  // read with its GGUF adapter
    std::vector<fs::path> entries;
    for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
    std::sort(entries.begin(), entries.end());
    for (const fs::path& entry : entries) {
      if (fs::is_directory(entry)) {
        look(entry);
      } else {
        take(entry);
      }
    }
  }

  void take(const fs::path& file) {
    const std::string extension = file.extension().string(), stem = file.stem().string();
    if (extension != ".gguf" && extension != ".json" && extension != ".safetensors") return;
    if (is_side_file(file.filename().string())) return;
    auto beside = [&](const char* ending) { return fs::path(file).replace_extension(ending); };
    if (extension == ".safetensors") {
      static const std::pair<const char*, Case::Kind> alone[] = {
          {"blocks", Case::blocks}, {"packing", Case::packing}, {"fp4", Case::fp4}, {"kv", Case::kv}};
      for (const auto& [name, kind] : alone) {
        if (stem == name) return cases.push_back({kind, file.string()});
      }
      if (!fs::exists(beside(".json"))) unknown.push_back(file.string());
      return;
    }
    // Answers that cannot be read are a model's: the case fails and says why.
    const json answers = try_load(beside(".json"));
    if (is_adapter(answers)) return;
    if (extension == ".gguf") {
      if (!fs::exists(beside(".json"))) return unknown.push_back(file.string());
      if (is_model(answers) || answers.is_null()) cases.push_back({Case::gguf_model, file.string()});
      return;
    }
    if (fs::exists(beside(".gguf"))) return;
    if (is_model(answers)) return cases.push_back({Case::gguf_unstored, file.string()});
    const bool describes = stem == "blocks" || stem == "packing" || stem == "fp4" || stem == "kv";
    if (!describes || !fs::exists(beside(".safetensors"))) unknown.push_back(file.string());
  }
};

void verify_case(const Case& one, const VerifyOptions& options, std::vector<VerifyCheck>& checks) {
  switch (one.kind) {
    case Case::gguf_model:
      return verify_gguf_model(one.path, options, checks);
    case Case::gguf_unstored:
      return checks.push_back(skipped(fs::path(one.path).stem().string(), "its .gguf file is not beside its answers"));
    case Case::gguf_broken:
      return verify_gguf_broken(one.path, checks);
    case Case::quantized_folder:
      return verify_quantized_folder(one.path, options, checks);
    case Case::blocks:
      return verify_block_formats(one.path, options, checks);
    case Case::packing:
      return verify_packed_words(one.path, checks);
    case Case::fp4:
      return verify_four_bit_floats(one.path, checks);
    case Case::kv:
      return verify_kv_formats(one.path, options, checks);
  }
}

}  // namespace

bool is_quantized_golden(const std::string& folder) { return !CaseFinder(folder).cases.empty(); }

std::vector<std::string> find_block_files(const std::string& folder) {
  std::vector<std::string> files;
  for (const Case& one : CaseFinder(folder).cases) {
    if (one.kind == Case::blocks) files.push_back(one.path);
  }
  return files;
}

std::vector<VerifyCheck> verify_quantized_golden(const std::string& folder, const VerifyOptions& options) {
  const CaseFinder found(folder);
  for (const std::string& file : found.unknown) base::log_warning("'{}' is of no known kind and is not checked", file);
  std::vector<VerifyCheck> checks;
  for (const Case& one : found.cases) {
    attempt(fs::path(one.path).filename().string(), checks, [&] { verify_case(one, options, checks); });
  }
  return checks;
}

}  // namespace sinter::eval
