#include "tune/verify/verify.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "tune/verify/case_folder.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

struct Kind {
  const char* name;
  Checks (*verify)(const std::string& folder, const eval::VerifyOptions& options);
};
constexpr Kind kKinds[] = {
    {"adapter", verify_adapter},
    {"adam8bit", verify_adam8bit},
    {"4bit-tensors", verify_four_bit},
    {"preference-adapter", verify_preference_adapter},
    {"qlora", verify_adapter},
    {"chat-template", verify_chat_template},
    {"packing", verify_packing},
    {"sft-packed", verify_sft_packed},
    {"sft-padded", verify_sft_padded},
    {"preference-pairs", verify_preference_pairs},
    {"kto", verify_kto},
    {"reward", verify_reward},
    {"ppo-value-head", verify_ppo_value_head},
    {"ppo-value-model", verify_ppo_value_model},
    {"grpo", verify_grpo},
};

constexpr const char* kModels = "models";  // what other cases start from

const Kind* find_kind(const std::string& name) {
  for (const Kind& kind : kKinds) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

}  // namespace

std::vector<TuneCase> find_tune_cases(const std::string& folder) {
  std::vector<TuneCase> cases;
  std::map<std::string, std::string> unknown;
  auto add = [&](const fs::path& path) {
    const nlohmann::ordered_json found = read_case(path.string());
    if (!found.is_object() || !found.contains("kind") || !found["kind"].is_string()) return;
    const auto kind = found["kind"].get<std::string>();
    if (find_kind(kind)) {
      cases.push_back({kind, path.string()});
    } else if (kind != kModels) {
      unknown[kind] = path.string();
    }
  };
  std::error_code ignored;
  if (fs::exists(fs::path(folder) / "case.json", ignored)) add(folder);
  for (fs::recursive_directory_iterator it(folder, ignored), end; it != end; it.increment(ignored)) {
    if (it->path().filename() == "case.json" && it.depth() > 0) add(it->path().parent_path());
  }
  for (const auto& [kind, path] : unknown) {
    if (!cases.empty()) base::log_warning("'{}': cases of kind '{}' are not known and not checked", path, kind);
  }
  std::sort(cases.begin(), cases.end(), [](const TuneCase& a, const TuneCase& b) { return a.folder < b.folder; });
  return cases;
}

std::vector<eval::VerifyCheck> verify_tune_case(const TuneCase& which, const eval::VerifyOptions& options) {
  const Kind* kind = find_kind(which.kind);
  SINTER_CHECK(kind != nullptr, "'{}': cases of kind '{}' are not known", which.folder, which.kind);
  try {
    return kind->verify(which.folder, options);
  } catch (const base::Error& e) {
    return {{"can be checked", "error", std::nan(""), 0, e.what()}};
  }
}

}  // namespace sinter::tune
