// The Hugging Face folder of a model in training.
#pragma once
#include <string>
#include <vector>

#include "core/tensor.h"
#include "spec/model_spec.h"

namespace sinter::train {

// config.json, model.safetensors in `dtype` and the tokenizer's files copied from `tokenizer_path` (a folder or a file;
// "" = none) into `folder`. `masters` are in the order of the parameter table, on any device.
void export_model(const std::string& folder, const spec::ModelSpec& spec, const std::vector<core::Tensor>& masters,
                  core::DType dtype, const std::string& tokenizer_path);

}  // namespace sinter::train
