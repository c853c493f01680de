#include "eval/model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::eval {

core::DType parse_precision(const std::string& text) {
  if (text == "fp32" || text == "f32") return core::DType::f32;
  if (text == "bf16") return core::DType::bf16;
  if (text == "fp16" || text == "f16") return core::DType::f16;
  base::fail_usage("precision '{}' is not known; expected fp32, bf16 or fp16", text);
}

OpenModel open_model(const std::string& folder, const OpenOptions& options) {
  OpenModel model;
  model.spec = spec::load_hf_config(folder + "/config.json");
  if (const std::string path = folder + "/generation_config.json"; std::filesystem::exists(path))
    spec::add_generation_config(base::load_json(path), path, model.spec);
  io::TensorFolder tensors(folder);
  model.store =
      std::make_unique<models::ParameterStore>(model.spec, models::StoreOptions{.device = options.device,
                                                                                .compute = options.compute,
                                                                                .trains = options.trains,
                                                                                .keeps_derived = !options.trains});
  models::load_weights(*model.store, model.spec, tensors);
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  return model;
}

}  // namespace sinter::eval
