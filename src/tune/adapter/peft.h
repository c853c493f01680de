// Adapter folders as PEFT writes and reads them: adapter_config.json and adapter_model.safetensors.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "models/parameter_store.h"
#include "spec/adapter.h"

namespace sinter::tune {

struct PeftConfig {
  spec::AdapterSpec adapter;
  std::string base_model;  // as written: a path from the adapter's folder, a name, or ""
  // What narrows target_modules, as written; resolve_targets() makes names of it.
  std::string pattern;          // a regular expression instead of target_modules
  std::vector<int64_t> layers;  // layers_to_transform; empty: all
  std::string layers_pattern;   // what stands before a layer's number
  std::vector<std::string> excluded;
  std::string excluded_pattern;
  bool is_classifier = false;  // of a sequence classifier: modules_to_save has its score
};

// Whether `folder` holds an adapter.
bool is_adapter_folder(const std::string& folder);
// Throws base::Error naming the key that asks for something else than LoRA, rsLoRA or DoRA.
PeftConfig read_peft_config(const std::string& folder);
// The adapter with patterns, layers and exclusions turned into whole names of modules of this model.
spec::AdapterSpec resolve_targets(const PeftConfig& config, const spec::ModelSpec& model);
// Writes adapter_config.json.
void write_peft_config(const std::string& folder, const PeftConfig& config, const spec::ModelSpec& model);

// Tensors of an adapter, in the form that stores keep them.
struct AdapterTensor {
  spec::ParameterSpec info;
  std::vector<float> values;
};
// Of every adapter tensor of the table. Throws base::Error for one that is missing, has another shape, or has no place.
std::vector<AdapterTensor> read_adapter_tensors(const std::string& folder,
                                                const std::vector<spec::ParameterSpec>& table);
void load_adapter(models::ParameterStore& store, const std::string& folder);
// The same of a store that holds a rank's share of the table.
void load_adapter(models::ParameterStore& store, const std::string& folder,
                  const std::vector<spec::ParameterSpec>& table);
// Writes adapter_model.safetensors: values[i] are those of the i-th adapter tensor of the table, on any device.
void write_adapter_tensors(const std::string& folder, const std::vector<spec::ParameterSpec>& table,
                           std::span<const core::Tensor> values);
// The name of a tensor's part in adapter files.
std::string peft_name(const spec::ParameterSpec& info, const spec::ParameterPart& part);

// First values: as drawn (a) and zero (b), magnitudes the norms of the frozen rows, so that the model is its base.
void initialize_adapter(models::ParameterStore& store, uint64_t seed);

}  // namespace sinter::tune
