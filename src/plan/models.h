// Public models by name, so that a plan needs no files: layer-exact specs from their published configs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace sinter::plan {

struct ModelPreset {
  std::string name;  // "llama-3.1-70b"
  std::vector<std::string> aliases;
  spec::ModelSpec spec;
};

const std::vector<ModelPreset>& model_presets();

// By name or alias, as resolve_model reads them; null when there is none.
const ModelPreset* find_preset(const std::string& text);

// A preset's name or alias (case, separators, an owner before '/', and words such as "instruct" ignored), a folder with
// a config.json, or a config.json itself. Throws UsageError naming the nearest preset.
struct ResolvedModel {
  std::string name;
  spec::ModelSpec spec;
  std::string config;  // the file it was read from; "" for a preset
};
ResolvedModel resolve_model(const std::string& text);

}  // namespace sinter::plan
