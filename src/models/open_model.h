// A model opened for use, from a Hugging Face folder or a GGUF file: spec, weights and transformer together.
#pragma once
#include <memory>
#include <string>

#include "models/transformer.h"
#include "spec/model_spec.h"

namespace sinter::models {

struct OpenOptions {
  core::Device device;
  core::DType compute = core::DType::f32;
  bool trains = false;
  // fp8_e4m3: linear layers of a plain folder are rounded to it while it is loaded (models/fp8_load.h).
  base::WeightFormat quantize = base::WeightFormat::plain;
  // On the CPU, without training: matrices whose file has the compute format stay where they are mapped. Their weights
  // cannot be set then.
  bool maps = false;
};

struct OpenModel {
  spec::ModelSpec spec;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Transformer> transformer;
};

// Loads config.json and the safetensors of a Hugging Face folder, or a .gguf, whose blocks stay mapped unless the model
// is to be trained (then they become plain numbers). Throws base::Error naming what is wrong.
OpenModel open_model(const std::string& folder, const OpenOptions& options);

// The spec alone.
spec::ModelSpec load_model_spec(const std::string& path);

// Throws base::Error where `folder` cannot be a model: not there, a file, or the folder of a training run, naming the
// model in it.
void check_model_folder(const std::string& folder);

// "fp32", "bf16" or "fp16"; throws base::UsageError.
core::DType parse_precision(const std::string& text);
// "" or "fp8"; throws base::UsageError.
base::WeightFormat parse_quantize(const std::string& text);

}  // namespace sinter::models
