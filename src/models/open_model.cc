#include "models/open_model.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "io/gguf.h"
#include "models/fp8_load.h"
#include "models/gguf.h"
#include "models/quantized/quantized_folder.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::models {

core::DType parse_precision(const std::string& text) {
  if (text == "fp32" || text == "f32") return core::DType::f32;
  if (text == "bf16") return core::DType::bf16;
  if (text == "fp16" || text == "f16") return core::DType::f16;
  base::fail_usage("precision '{}' is not known; expected fp32, bf16 or fp16", text);
}

base::WeightFormat parse_quantize(const std::string& text) {
  if (text.empty()) return base::WeightFormat::plain;
  if (text == "fp8") return base::WeightFormat::fp8_e4m3;
  base::fail_usage("weights cannot be rounded to '{}' while they are loaded; expected fp8, or use `sinter quantize`",
                   text);
}

void check_model_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  if (fs::exists(folder) && io::is_gguf(folder)) return;
  SINTER_CHECK(fs::is_directory(folder),
               "'{}' is {}; expected a model folder (config.json, *.safetensors) or a .gguf file{}", folder,
               fs::exists(folder) ? "a file" : "not there",
               fs::exists(folder) || fs::path(folder).is_absolute()
                   ? ""
                   : "; `hf download ORGANISATION/NAME --local-dir FOLDER` gets one");
  SINTER_CHECK(
      fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "state" / "index.json"),
      "'{}' is a checkpoint without a model: several ranks write one at the end, and every "
      "checkpoint.export_every steps; start `sinter train` again to have it finish, or on one rank to write it",
      folder);
  SINTER_CHECK(fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "latest"),
               "'{}' is the folder of a training run; its newest model is '{}'", folder,
               (fs::path(folder) / "latest").string());
  SINTER_CHECK(
      fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "metrics.jsonl"),
      "'{}' is the folder of a training run that has written no model yet; let it train up to a checkpoint, or name "
      "a model's folder",
      folder);
  SINTER_CHECK(fs::exists(fs::path(folder) / "config.json") || !fs::exists(fs::path(folder) / "tokenizer.json"),
               "'{}' holds a tokenizer and no model: config.json is not there", folder);
}

namespace {

OpenModel open_gguf(const std::string& path, const OpenOptions& options) {
  auto file = std::make_shared<const io::GgufFile>(path);
  OpenModel model;
  model.spec = gguf_model_spec(*file);
  StoreOptions store{.device = options.device,
                     .compute = options.compute,
                     .trains = options.trains,
                     .keeps_derived = !options.trains,
                     .apart = gguf_tensors_apart(model.spec, *file)};
  if (options.trains) store.apart.clear();
  model.store = std::make_unique<ParameterStore>(model.spec, store);
  load_gguf_weights(*model.store, model.spec, file);
  model.transformer = std::make_unique<Transformer>(model.spec, *model.store);
  return model;
}

}  // namespace

namespace {

// config.json without its quantization_config, and generation_config.json.
spec::ModelSpec folder_spec(const std::string& folder, nlohmann::json config) {
  const std::string path = folder + "/config.json";
  if (config.is_object()) config.erase("quantization_config");
  spec::ModelSpec spec = spec::parse_hf_config(config, path);
  if (const std::string other = folder + "/generation_config.json"; std::filesystem::exists(other))
    spec::add_generation_config(base::load_json(other), other, spec);
  return spec;
}

}  // namespace

spec::ModelSpec load_model_spec(const std::string& path) {
  if (io::is_gguf(path)) return gguf_model_spec(io::GgufFile(path));
  return folder_spec(path, base::load_json(path + "/config.json"));
}

OpenModel open_model(const std::string& folder, const OpenOptions& options) {
  const bool rounds = options.quantize != base::WeightFormat::plain;
  if (io::is_gguf(folder)) {
    if (rounds) base::fail_usage("'{}' has its format: only a folder's plain weights are rounded at load", folder);
    return open_gguf(folder, options);
  }
  OpenModel model;
  const nlohmann::json config = base::load_json(folder + "/config.json");
  model.spec = folder_spec(folder, config);
  const auto mapped = std::make_shared<const io::TensorFolder>(folder);
  const io::TensorFolder& tensors = *mapped;
  const auto quantized = QuantizedFolder::open(config, folder + "/config.json", tensors);
  StoreOptions store{
      .device = options.device, .compute = options.compute, .trains = options.trains, .keeps_derived = !options.trains};
  if (rounds && (quantized || options.trains))
    base::fail_usage("'{}' {}: only plain weights are rounded at load", folder,
                     quantized ? "is quantized already" : "is to be trained");
  const bool maps =
      options.maps && !options.trains && !quantized && !rounds && options.device.kind == core::DeviceKind::cpu;
  if (quantized && !options.trains) store.apart = quantized->tensors_apart(model.spec);
  if (rounds) store.apart = fp8_tensors(model.spec);
  if (maps) store.apart = mappable_tensors(model.spec, tensors, options.compute);
  model.store = std::make_unique<ParameterStore>(model.spec, store);
  if (quantized) {
    quantized->load(*model.store, model.spec);
  } else if (rounds) {
    load_in_fp8(*model.store, model.spec, tensors);
  } else {
    load_weights(*model.store, model.spec, tensors, mapped);
  }
  model.transformer = std::make_unique<Transformer>(model.spec, *model.store);
  return model;
}

}  // namespace sinter::models
