// GGUF adapters against PEFT on the dequantized base: folders with adapter.gguf, adapter.json ("answers" by the name of
// the base's file, which lies in a folder beside this one) and adapter.safetensors (KIND.exactK_scaleS, promptK).
#pragma once
#include <string>
#include <vector>

#include "eval/verify.h"

namespace sinter::tune {

// Such folders in a folder or below it, in order of path.
std::vector<std::string> find_gguf_adapters(const std::string& folder);
std::vector<eval::VerifyCheck> verify_gguf_adapter(const std::string& folder);

}  // namespace sinter::tune
