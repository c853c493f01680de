#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "data/text/hash.h"
#include "eval/golden/golden.h"
#include "eval/quantized/quantized_golden.h"
#include "models/open_model.h"
#include "models/weights.h"

namespace sinter::eval {

namespace fs = std::filesystem;

void verify_quantized_folder(const std::string& folder, const VerifyOptions& options,
                             std::vector<VerifyCheck>& checks) {
  const nlohmann::json answers = base::load_json((fs::path(folder) / "golden.json").string());
  const std::string name = fs::path(folder).filename().string();
  CaseCounter weights(name + ": dequantized weights");
  {
    const models::OpenModel model = models::open_model(folder, {options.device, base::DType::f32, false});
    size_t num_found = 0;
    for (const models::ParameterStore::Slot& slot : model.store->slots()) {
      for (const models::DiskTensor& part : models::split_parts(slot.info, model.store->values_of(slot))) {
        auto found = answers.at("dequantized_sha256").find(part.name);
        if (found == answers["dequantized_sha256"].end()) continue;
        ++num_found;
        weights.expect(data::sha256_hex({reinterpret_cast<const char*>(part.values.data()), part.values.size() * 4}) ==
                           found->get<std::string>(),
                       part.name);
      }
    }
    weights.expect(num_found == answers["dequantized_sha256"].size(), "all tensors are there");
  }
  checks.push_back(weights.check());
  const io::SafetensorsFile golden((fs::path(folder) / "golden.safetensors").string());
  verify_model_answers({.model = folder,
                        .case_name = name,
                        .logits = "logits",
                        .greedy = "greedy",
                        .greedy_margin = "greedy_margin",
                        .greedy_prompt = "greedy_prompt",
                        .perplexity = answers.value("perplexity", 0.0),
                        .text = (fs::path(folder).parent_path().parent_path() / "gguf" / "eval.txt").string()},
                       golden, options, checks);
}

}  // namespace sinter::eval
