#include "train/export.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

// What a tokenizer consists of in a model folder.
constexpr std::array<const char*, 9> kTokenizerFiles{
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",     "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "generation_config.json"};

void copy_file(const std::string& from, const std::string& to) { base::write_file_atomic(to, base::read_file(from)); }

}  // namespace

void export_model(const std::string& folder, const spec::ModelSpec& spec, const std::vector<core::Tensor>& masters,
                  core::DType dtype, const std::string& tokenizer_path) {
  models::save_weights(spec::make_parameter_table(spec), masters, folder, dtype);
  base::save_json(folder + "/config.json", spec::make_hf_config(spec, dtype == core::DType::f32   ? "float32"
                                                                      : dtype == core::DType::f16 ? "float16"
                                                                                                  : "bfloat16"));
  if (tokenizer_path.empty()) return;
  if (fs::is_directory(tokenizer_path)) {
    for (const char* name : kTokenizerFiles) {
      const std::string source = tokenizer_path + "/" + name;
      if (fs::exists(source)) copy_file(source, folder + "/" + name);
    }
  } else {
    copy_file(tokenizer_path, folder + "/" + fs::path(tokenizer_path).filename().string());
  }
}

}  // namespace sinter::train
