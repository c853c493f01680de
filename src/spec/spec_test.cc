#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "spec/hf_config.h"
#include "spec/parameters.h"

namespace sinter::spec {
namespace {

using nlohmann::json;

std::string golden(const std::string& name) { return std::string(SINTER_SOURCE_DIR) + "/tests/golden/models/" + name; }

TEST(ParameterTable, CountsMatchTheGoldenModels) {
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) {
    json answer = json::parse(std::ifstream(entry.path() / "golden.json"));
    EXPECT_EQ(count_parameters(load_hf_config(entry.path() / "config.json")).total, answer["parameters"].get<int64_t>())
        << entry.path();
  }
}

TEST(ParameterTable, Gpt2SmallHas124439808) {
  json config{{"model_type", "gpt2"}, {"vocab_size", 50257}, {"n_embd", 768},
              {"n_layer", 12},        {"n_head", 12},        {"n_positions", 1024}};
  EXPECT_EQ(count_parameters(parse_hf_config(config, "test")).total, 124439808);
}

TEST(HfConfig, EveryGoldenConfigSurvivesTheRoundTrip) {
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) {
    ModelSpec first = load_hf_config(entry.path() / "config.json");
    ModelSpec second = parse_hf_config(make_hf_config(first, "float32"), "written");
    EXPECT_EQ(make_hf_config(first, "float32"), make_hf_config(second, "float32")) << entry.path();
    EXPECT_EQ(count_parameters(first).total, count_parameters(second).total);
  }
}

void expect_error(const json& config, const std::string& part) {
  try {
    parse_hf_config(config, "config.json");
    FAIL() << "accepted " << config.dump();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

TEST(HfConfig, RefusesWhatWouldChangeTheAnswer) {
  json llama = json::parse(std::ifstream(golden("llama") + "/config.json"));
  auto with = [&](const char* key, json value) {
    json c = llama;
    c[key] = value;
    return c;
  };
  expect_error(with("architectures", {"BertModel"}), "BertModel");
  expect_error(with("hidden_act", "tanhshrink"), "hidden_act");
  expect_error(with("quantization_config", {{"bits", 4}}), "quantization_config");
  expect_error(with("rope_parameters", {{"rope_type", "longrope"}, {"factor", 2.0}}), "longrope");
  expect_error(with("partial_rotary_factor", 0.5), "partial_rotary_factor");
  expect_error(with("num_key_value_heads", 3), "num_key_value_heads");
  expect_error(with("vocab_size", "many"), "vocab_size");
  expect_error(with("hidden_size", nullptr), "hidden_size");
  expect_error(with("num_hidden_layers", -1), "num_hidden_layers");
}

TEST(LossChunks, AreEqualMultiplesOfATileWithinTheirBytes) {
  EXPECT_EQ(loss_chunk_rows(65536, 50304, 2), 5504);  // 12 of them; 11 would be too large
  EXPECT_EQ(loss_chunk_rows(100, 50304, 4), 100);
  EXPECT_EQ(loss_chunk_rows(0, 50304, 4), 0);
  EXPECT_EQ(loss_chunk_rows(300, int64_t{1} << 40, 4), 128);  // a row alone is more than a chunk may be
  for (int64_t rows : {1, 127, 129, 5632, 5633, 100001}) {
    for (int64_t vocab : {2, 2048, 32768, 50304, 262144}) {
      const int64_t chunk = loss_chunk_rows(rows, vocab, 2), chunks = (rows + chunk - 1) / chunk;
      EXPECT_TRUE(chunk == rows || chunk % 128 == 0) << rows << " of " << vocab;
      EXPECT_LE(chunk * vocab * 2, int64_t{544} << 20);
      EXPECT_LT(chunks * chunk - rows, 128 * chunks);  // the last lacks no more than rounding up adds
    }
  }
}

}  // namespace
}  // namespace sinter::spec
