// The Hugging Face folder of a model in training.
#pragma once
#include <string>
#include <vector>

#include "core/tensor.h"
#include "spec/model_spec.h"

namespace sinter::train {

// A file of a model folder.
struct NamedFile {
  std::string name, bytes;
};

// The files that make up the tokenizer at `path` (a folder, or a file of any name) in a model folder. A run reads them
// once: what becomes of the path later is no matter to its checkpoints.
std::vector<NamedFile> read_tokenizer_files(const std::string& path);

// config.json, model.safetensors in `dtype` and the tokenizer's files into `folder`. `masters` are in the order of the
// parameter table, on any device.
void export_model(const std::string& folder, const spec::ModelSpec& spec, const std::vector<core::Tensor>& masters,
                  core::DType dtype, const std::vector<NamedFile>& tokenizer);

// The same where no rank has all masters: reads them one after the other from the state in that folder.
void export_state(const std::string& folder, const spec::ModelSpec& spec, core::DType dtype,
                  const std::vector<NamedFile>& tokenizer);

}  // namespace sinter::train
