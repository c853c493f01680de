// LoRA adapters in GGUF files, as llama.cpp keeps them: NAME.lora_a and NAME.lora_b beside the names of the base's
// tensors, and adapter.lora.alpha.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "spec/adapter.h"
#include "tune/adapter/peft.h"

namespace sinter::tune {

// Whether the path is a GGUF file with an adapter in it.
bool is_gguf_adapter(const std::string& path);

struct GgufAdapter {
  PeftConfig config;
  std::map<std::string, std::vector<float>> tensors;  // by the names that PEFT gives them, in its order of rows
};
// Throws base::Error naming the file and the key or tensor: for another architecture than the base's, a tensor that
// the base has no place for or that does not fit it, and a half of a pair.
GgufAdapter read_gguf_adapter(const std::string& path, const spec::ModelSpec& base);

// An adapter folder from such a file, and the file from a folder. Both throw base::Error when `out` is there, and the
// second for what the file cannot say: DoRA, modules that are saved whole, token tables.
void gguf_adapter_to_folder(const std::string& path, const spec::ModelSpec& base, const std::string& out);
void folder_to_gguf_adapter(const std::string& folder, const spec::ModelSpec& base, const std::string& out);

}  // namespace sinter::tune
