#include "eval/quantized/quantized_golden.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"

namespace sinter::eval {
namespace {

namespace fs = std::filesystem;

struct Case {
  enum Kind { gguf_model, gguf_broken, quantized_folder } kind;
  std::string path;
};

bool is_quantized_folder(const fs::path& folder) {
  if (!fs::exists(folder / "golden.safetensors") || !fs::exists(folder / "golden.json")) return false;
  const nlohmann::json answers = base::load_json((folder / "golden.json").string());
  return answers.is_object() && answers.contains("dequantized_sha256");
}

bool is_broken_folder(const fs::path& folder) {
  if (!fs::exists(folder / "index.json")) return false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".gguf") return true;
  }
  return false;
}

// Answers of a model's file; not of an adapter's.
bool is_model(const nlohmann::json& answers) {
  return answers.is_object() && answers.contains("metadata") && !answers["metadata"].contains("adapter.type");
}

void find_cases(const fs::path& folder, std::vector<Case>& cases) {
  if (!fs::is_directory(folder)) return;
  if (is_quantized_folder(folder)) return cases.push_back({Case::quantized_folder, folder.string()});
  if (is_broken_folder(folder)) return cases.push_back({Case::gguf_broken, folder.string()});
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  for (const fs::path& entry : entries) {
    fs::path answers = entry;
    if (fs::is_directory(entry)) find_cases(entry, cases);
    if (entry.extension() == ".gguf" && fs::exists(answers.replace_extension(".safetensors")) &&
        fs::exists(answers.replace_extension(".json")) && is_model(base::load_json(answers.string())))
      cases.push_back({Case::gguf_model, entry.string()});
  }
}

}  // namespace

bool is_quantized_golden(const std::string& folder) {
  std::vector<Case> cases;
  find_cases(folder, cases);
  return !cases.empty();
}

std::vector<VerifyCheck> verify_quantized_golden(const std::string& folder, const VerifyOptions& options) {
  std::vector<Case> cases;
  find_cases(folder, cases);
  std::vector<VerifyCheck> checks;
  for (const Case& one : cases) {
    if (one.kind == Case::gguf_model) verify_gguf_model(one.path, options, checks);
    if (one.kind == Case::gguf_broken) verify_gguf_broken(one.path, checks);
    if (one.kind == Case::quantized_folder) verify_quantized_folder(one.path, options, checks);
  }
  return checks;
}

}  // namespace sinter::eval
