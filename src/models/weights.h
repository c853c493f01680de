// Weights between a Hugging Face folder and a ParameterStore, part by part as the parameter table says.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "io/tensor_folder.h"
#include "models/parameter_store.h"

namespace sinter::models {

// Reads every part of every tensor. Throws base::Error naming a tensor that is missing or has the wrong shape, and for
// tensors in the folder that the model has no place for (known buffers such as rotary_emb.inv_freq are passed over).
void load_weights(ParameterStore& store, const spec::ModelSpec& spec, const io::TensorFolder& folder);

// One stored tensor cut into its parts as they stand on disk.
struct DiskTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
};
std::vector<DiskTensor> split_parts(const spec::Parameter& info, std::span<const float> values);

// Writes model.safetensors (or shards) in `dtype`; values[i] are those of table[i], on any device. config.json and
// tokenizer files are the caller's.
void save_weights(const std::vector<spec::Parameter>& table, const std::vector<Tensor>& values,
                  const std::string& folder, DType dtype);
void save_weights(const ParameterStore& store, const std::string& folder, DType dtype);

}  // namespace sinter::models
