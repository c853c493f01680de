// Hugging Face folders whose linear layers are quantized, as config.json's quantization_config describes them.
#pragma once
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>

#include "io/tensor_folder.h"
#include "models/parameter_store.h"

namespace sinter::models {

class QuantizedFolder {
 public:
  // Null where the config has no quantization_config. Throws base::Error for a method, a layout or a width that is not
  // read, naming it and saying what to do. The folder must outlive this object.
  static std::unique_ptr<QuantizedFolder> open(const nlohmann::json& config, const std::string& config_path,
                                               const io::TensorFolder& folder);
  ~QuantizedFolder();

  // "gptq, 4 bits, groups of 128", for people.
  std::string description() const;
  // Names of the model's tensors that are quantized here, wholly or in part.
  std::set<std::string> tensors_apart(const spec::ModelSpec& spec) const;
  // Gives every tensor of the store its weights. Quantized ones become blocks where the store keeps them apart, else
  // plain numbers. Throws base::Error naming what is missing, misshapen or has no place.
  void load(ParameterStore& store, const spec::ModelSpec& spec) const;
  // Whether a piece of a stored tensor is quantized here, and its numbers as (rows, columns): empty where it is not.
  bool holds(const spec::ParameterPart& part) const;
  std::vector<float> read_part(const spec::ParameterSpec& info, const spec::ParameterPart& part) const;

 private:
  struct Scheme;
  QuantizedFolder(std::unique_ptr<Scheme> scheme, const io::TensorFolder& folder);
  bool is_quantized(const std::string& module) const;
  core::WeightPart read(const std::string& module, int64_t rows, int64_t columns, std::set<std::string>& used) const;
  void load_slot(ParameterStore& store, ParameterStore::Slot& slot, std::set<std::string>& used) const;
  std::unique_ptr<Scheme> scheme_;
  const io::TensorFolder& folder_;
};

}  // namespace sinter::models
