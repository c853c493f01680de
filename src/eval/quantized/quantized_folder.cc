#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/text/hash.h"
#include "eval/golden/golden.h"
#include "eval/quantized/golden_tensors.h"
#include "eval/quantized/quantized_golden.h"
#include "models/open_model.h"
#include "models/weights.h"

namespace sinter::eval {

namespace fs = std::filesystem;

namespace {

VerifyCheck check_dequantized(const std::string& folder, const std::string& name, const nlohmann::json& answers,
                              core::Device device) {
  CaseCounter weights(name + ": dequantized weights");
  const models::OpenModel model = models::open_model(folder, {device, base::DType::f32, false});
  size_t num_found = 0;
  for (const models::ParameterStore::Slot& slot : model.store->slots()) {
    for (const models::DiskTensor& part : models::split_parts(slot.info, model.store->values_of(slot))) {
      auto found = answers.find(part.name);
      if (found == answers.end()) continue;
      ++num_found;
      weights.expect(data::sha256_hex({reinterpret_cast<const char*>(part.values.data()), part.values.size() * 4}) ==
                         found->get<std::string>(),
                     part.name);
    }
  }
  weights.expect(num_found == answers.size(), "all tensors are there");
  return weights.check();
}

// The folder's own file of logits, or that of version 1 of the same weights; "": neither is there.
std::string find_logits(const fs::path& folder) {
  const std::string name = folder.filename().string();
  fs::path first = folder;
  if (name.ends_with("-v2")) first.replace_filename(name.substr(0, name.size() - 1) + "1");
  for (const fs::path& place : {folder, first}) {
    if (fs::exists(place / "golden.safetensors")) return (place / "golden.safetensors").string();
  }
  return "";
}

}  // namespace

void verify_quantized_folder(const std::string& folder, const VerifyOptions& options,
                             std::vector<VerifyCheck>& checks) {
  const nlohmann::json answers = base::load_json((fs::path(folder) / "golden.json").string());
  const std::string name = fs::path(folder).filename().string();
  if (answers.contains("dequantized_sha256"))
    checks.push_back(check_dequantized(folder, name, answers["dequantized_sha256"], options.device));
  const std::string logits = find_logits(folder);
  if (logits.empty()) return checks.push_back(skipped(name + ": logits", "the folder has no golden.safetensors"));
  const io::SafetensorsFile golden(logits);
  verify_model_answers(
      {.model = folder,
       .case_name = name,
       .logits = "logits",
       .greedy = "greedy",
       .greedy_margin = "greedy_margin",
       .greedy_prompt = "greedy_prompt",
       .perplexity = answers.value("perplexity", 0.0),
       .text = (fs::weakly_canonical(folder).parent_path().parent_path() / "gguf" / "eval.txt").string()},
      golden, options, checks);
  if (golden.find("logits_w8a8_0"))
    checks.push_back(skipped(name + ": logits with fp8 activations", "products here do not round activations to fp8"));
}

}  // namespace sinter::eval
