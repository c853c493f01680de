// The GGUF file that llama.cpp's converter made of a PEFT adapter holds what PEFT's own file holds (tests/golden/gguf).
#include "tune/adapter/gguf_adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "io/safetensors.h"
#include "spec/hf_config.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

const std::string kFolder = base::source_dir() + "/tests/golden/gguf/lora/";

spec::ModelSpec base_spec() {
  return spec::parse_hf_config({{"model_type", "llama"},
                                {"hidden_size", 256},
                                {"intermediate_size", 512},
                                {"num_hidden_layers", 2},
                                {"num_attention_heads", 8},
                                {"num_key_value_heads", 2},
                                {"vocab_size", 512},
                                {"max_position_embeddings", 512},
                                {"rms_norm_eps", 1e-5},
                                {"tie_word_embeddings", true}},
                               "config.json");
}

std::vector<float> floats_of(const io::TensorEntry& entry) {
  std::vector<float> values(static_cast<size_t>(entry.num_elements()));
  base::convert_elements(entry.dtype, entry.bytes.data(), base::DType::f32, values.data(), values.size());
  return values;
}

TEST(GgufAdapter, HoldsTheTensorsOfPeft) {
  const GgufAdapter adapter = read_gguf_adapter(kFolder + "adapter.gguf", base_spec());
  const io::SafetensorsFile peft(kFolder + "adapter/adapter_model.safetensors");
  ASSERT_EQ(adapter.tensors.size(), peft.entries().size());
  for (const io::TensorEntry& entry : peft.entries()) EXPECT_EQ(adapter.tensors.at(entry.name), floats_of(entry));
  const PeftConfig config = read_peft_config(kFolder + "adapter");
  EXPECT_EQ(adapter.config.adapter.rank, config.adapter.rank);
  EXPECT_EQ(adapter.config.adapter.alpha, config.adapter.alpha);
}

TEST(GgufAdapter, AFolderAndBackIsTheSameFile) {
  const fs::path scratch = fs::temp_directory_path() / fmt::format("sinter_gguf_adapter_{}", ::getpid());
  fs::remove_all(scratch);
  fs::create_directories(scratch);
  const std::string folder = (scratch / "adapter").string(), file = (scratch / "adapter.gguf").string();
  gguf_adapter_to_folder(kFolder + "adapter.gguf", base_spec(), folder);
  folder_to_gguf_adapter(folder, base_spec(), file);
  EXPECT_EQ(read_gguf_adapter(file, base_spec()).tensors,
            read_gguf_adapter(kFolder + "adapter.gguf", base_spec()).tensors);
  EXPECT_THROW(gguf_adapter_to_folder(file, base_spec(), folder), base::Error) << "a folder that is there";
  fs::remove_all(scratch);
}

TEST(GgufAdapter, ABaseThatDoesNotFitIsNamed) {
  spec::ModelSpec wide = base_spec(), other = base_spec();
  wide.ffn = 640;
  other.family = spec::Family::qwen2;
  auto error_of = [](const spec::ModelSpec& base) {
    try {
      read_gguf_adapter(kFolder + "adapter.gguf", base);
    } catch (const base::Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of(wide).find("ffn_"), std::string::npos);
  EXPECT_NE(error_of(other).find("architecture"), std::string::npos);
}

}  // namespace
}  // namespace sinter::tune
