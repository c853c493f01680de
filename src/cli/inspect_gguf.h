// What `sinter inspect` shows of a GGUF file.
#pragma once
#include <string>

namespace sinter::cli {

// To standard output: metadata, the model it makes, tokenizer, tensors by type, and unless `is_summary` a table of
// them.
void inspect_gguf(const std::string& path, bool is_summary, bool as_json);

}  // namespace sinter::cli
