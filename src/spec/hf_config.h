// Hugging Face's config.json to ModelSpec and back.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "spec/model_spec.h"

namespace sinter::spec {

// Reads a parsed config.json. `origin` is the path for error messages. Throws base::Error when the architecture is not
// known, a needed key is missing, or a key that would change the model's answers is set to something not supported.
ModelSpec parse_hf_config(const nlohmann::json& config, const std::string& origin);
ModelSpec load_hf_config(const std::string& path);
// Adds what a generation_config.json says of the tokens that end a text.
void add_generation_config(const nlohmann::json& config, const std::string& origin, ModelSpec& spec);

// A config.json that transformers loads as this model.
nlohmann::json make_hf_config(const ModelSpec& spec, const std::string& dtype);

}  // namespace sinter::spec
