#include "models/open_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::models {

core::DType parse_precision(const std::string& text) {
  if (text == "fp32" || text == "f32") return core::DType::f32;
  if (text == "bf16") return core::DType::bf16;
  if (text == "fp16" || text == "f16") return core::DType::f16;
  base::fail_usage("precision '{}' is not known; expected fp32, bf16 or fp16", text);
}

void check_model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  SINTER_CHECK(fs::is_directory(folder), "'{}' is {}; expected a model folder (config.json, *.safetensors)", folder,
               fs::exists(folder) ? "a file" : "not there");
  SINTER_CHECK(
      fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "state" / "index.json"),
      "'{}' is a checkpoint without a model: several ranks write one at the end, and every "
      "checkpoint.export_every steps; start `sinter train` again to have it finish, or on one rank to write it",
      folder);
  SINTER_CHECK(fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "latest"),
               "'{}' is the folder of a training run; its newest model is '{}'", folder,
               (fs::path(folder) / "latest").string());
}

OpenModel open_model(const std::string& folder, const OpenOptions& options) {
  OpenModel model;
  model.spec = spec::load_hf_config(folder + "/config.json");
  if (const std::string path = folder + "/generation_config.json"; std::filesystem::exists(path))
    spec::add_generation_config(base::load_json(path), path, model.spec);
  io::TensorFolder tensors(folder);
  model.store = std::make_unique<ParameterStore>(model.spec, StoreOptions{.device = options.device,
                                                                          .compute = options.compute,
                                                                          .trains = options.trains,
                                                                          .keeps_derived = !options.trains});
  load_weights(*model.store, model.spec, tensors);
  model.transformer = std::make_unique<Transformer>(model.spec, *model.store);
  return model;
}

}  // namespace sinter::models
