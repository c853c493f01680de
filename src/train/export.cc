#include "train/export.h"

#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

// What a tokenizer consists of in a model folder; the first ones are the tokenizer itself, in one form or another.
constexpr std::array<const char*, 4> kTokenizers{"tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt"};
constexpr std::array<const char*, 6> kBesideIt{"tokenizer_config.json", "special_tokens_map.json",
                                               "added_tokens.json",     "chat_template.jinja",
                                               "chat_template.json",    "generation_config.json"};
constexpr const char* kMoreTemplates = "additional_chat_templates";

// What a model folder has besides weights.
void write_beside(const std::string& folder, const spec::ModelSpec& spec, core::DType dtype,
                  const std::vector<NamedFile>& tokenizer) {
  base::save_json(folder + "/config.json", spec::make_hf_config(spec, dtype == core::DType::f32   ? "float32"
                                                                      : dtype == core::DType::f16 ? "float16"
                                                                                                  : "bfloat16"));
  for (const NamedFile& file : tokenizer) {
    const fs::path path = fs::path(folder) / file.name;
    base::create_folders(path.parent_path().string());
    base::write_file_atomic(path.string(), file.bytes);
  }
}

}  // namespace

std::vector<NamedFile> read_tokenizer_files(const std::string& path) {
  std::vector<NamedFile> files;
  const bool is_folder = fs::is_directory(path);
  const fs::path folder = is_folder ? fs::path(path) : fs::path(path).parent_path();
  auto read = [&](const char* name) {
    if (fs::exists(folder / name)) files.push_back({name, base::read_file((folder / name).string())});
  };
  if (is_folder) {
    for (const char* name : kTokenizers) read(name);
  } else if (const std::string extension = fs::path(path).extension().string(); extension == ".json") {
    files.push_back({"tokenizer.json", base::read_file(path)});
  } else if (extension == ".model") {
    files.push_back({"tokenizer.model", base::read_file(path)});
  } else {
    files.push_back({"tokenizer.json", tokenizer::Tokenizer::load(path).to_json()});
  }
  for (const char* name : kBesideIt) read(name);
  if (fs::is_directory(folder / kMoreTemplates)) {
    for (const auto& entry : fs::directory_iterator(folder / kMoreTemplates)) {
      const fs::path name = fs::path(kMoreTemplates) / entry.path().filename();
      if (entry.is_regular_file()) read(name.c_str());
    }
  }
  return files;
}

void export_model(const std::string& folder, const spec::ModelSpec& spec, const std::vector<core::Tensor>& masters,
                  core::DType dtype, const std::vector<NamedFile>& tokenizer) {
  models::save_weights(spec::make_parameter_table(spec), masters, folder, dtype);
  write_beside(folder, spec, dtype, tokenizer);
}

void export_state(const std::string& folder, const spec::ModelSpec& spec, core::DType dtype,
                  const std::vector<NamedFile>& tokenizer) {
  StateReader reader(folder);
  const std::vector<spec::ParameterSpec> table = spec::make_parameter_table(spec);
  models::save_weights(
      table,
      [&](size_t i) {
        const core::Tensor values(core::runtime({}).allocator(), table[i].shape, core::DType::f32);
        reader.read({"master", table[i].name, values});
        return values;
      },
      folder, dtype);
  write_beside(folder, spec, dtype, tokenizer);
}

}  // namespace sinter::train
