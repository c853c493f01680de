#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/source_dir.h"
#include "spec/hf_config.h"
#include "spec/parameters.h"
#include "spec/recipe.h"

namespace sinter::spec {
namespace {

using nlohmann::json;

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/models/" + name; }

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
  expect_error(with("hidden_act", std::string("silu\0", 5)), "\"silu\\u0000\"; expected a string");
  expect_error(with("quantization_config", {{"bits", 4}}), "quantization_config");
  expect_error(with("rope_parameters", {{"rope_type", "longrope"}, {"factor", 2.0}}), "longrope");
  expect_error(with("rope_parameters", {{"rope_type", "longrope"}}), "rope_type 'longrope' is not supported");
  expect_error(with("hidden_size", 1e308), "expected a whole number of at most 9.2e+18");
  json two_ropes = with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}});
  two_ropes["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  expect_error(two_ropes, "rope_scaling");
  json two_thetas = with("rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000.0}});
  two_thetas["rope_theta"] = 500000.0;
  expect_error(two_thetas, "'rope_theta' (500000)");
  expect_error(with("hidden_size", int64_t{4000000000}), "no machine can hold");
  json many_heads = with("head_dim", int64_t{1} << 39);  // times the heads: more than 64 bits hold
  many_heads["num_attention_heads"] = many_heads["num_key_value_heads"] = int64_t{1} << 39;
  expect_error(many_heads, "no machine can hold");
  expect_error(with("partial_rotary_factor", 0.5), "partial_rotary_factor");
  expect_error(with("num_key_value_heads", 3), "num_key_value_heads");
  expect_error(with("vocab_size", "many"), "vocab_size");
  expect_error(with("hidden_size", nullptr), "hidden_size");
  expect_error(with("num_hidden_layers", -1), "num_hidden_layers");
}

TEST(HfConfig, RefusesRopeWhoseAnglesAreNotNumbers) {
  json llama = json::parse(std::ifstream(golden("llama") + "/config.json"));
  auto with = [&](json rope) {
    json c = llama;
    c["rope_parameters"] = rope;
    return c;
  };
  expect_error(with({{"rope_type", "default"}, {"rope_theta", 0.0}}), "rope_theta is 0");
  expect_error(with({{"rope_type", "default"}, {"rope_theta", -10000.0}}), "rope_theta is -10000");
  expect_error(with({{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1.0}}), "rope_theta is 1");
  expect_error(with({{"rope_type", "linear"}, {"factor", 0.5}}), "factor is 0.5");
  json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 0}};
  expect_error(with(yarn), "original_max_position_embeddings is 0");
  json llama3{{"rope_type", "llama3"}, {"factor", 8.0}, {"original_max_position_embeddings", 32}};
  llama3["low_freq_factor"] = llama3["high_freq_factor"] = 4.0;
  expect_error(with(llama3), "high_freq_factor 4");
}

// Not written in a file, a key has its family's value in transformers; null is a value too.
TEST(HfConfig, KeysLeftOutHaveTheFamilysDefaults) {
  auto parse = [](const char* model_type, const json& more) {
    json config{{"model_type", model_type}, {"vocab_size", 100},         {"hidden_size", 64},
                {"num_hidden_layers", 2},   {"num_attention_heads", 16}, {"intermediate_size", 64},
                {"num_local_experts", 4}};
    config.update(more);
    return parse_hf_config(config, "test");
  };
  const ModelSpec mixtral = parse("mixtral", json::object()), mistral = parse("mistral", json::object());
  EXPECT_EQ(mixtral.rope.theta, 1e6);
  EXPECT_FLOAT_EQ(mixtral.norm_eps, 1e-5f);
  EXPECT_EQ(mixtral.num_kv_heads, 8);
  EXPECT_EQ(mixtral.window_of(0), 0);
  EXPECT_EQ(mistral.rope.theta, 1e4);
  EXPECT_EQ(mistral.num_kv_heads, 8);
  EXPECT_EQ(mistral.window_of(1), 4096);
  EXPECT_EQ(parse("mistral", {{"sliding_window", nullptr}}).window_of(1), 0);
  EXPECT_EQ(parse("mistral", {{"num_key_value_heads", nullptr}}).num_kv_heads, 16);
  EXPECT_EQ(parse("llama", json::object()).num_kv_heads, 16);
  for (const char* qwen : {"qwen2", "qwen3"}) {
    const json slides{{"num_key_value_heads", 4}, {"use_sliding_window", true}, {"max_window_layers", 1}};
    EXPECT_EQ(parse(qwen, slides).window_of(1), 4096);
    EXPECT_EQ(parse(qwen, {{"num_key_value_heads", 4}}).window_of(1), 0);
  }
  EXPECT_LT(parse("mistral", {{"sliding_window", INT64_MAX}}).window_of(1), INT64_MAX / 2) << "room to add to it";
}

TEST(HfConfig, RopeKeysAreReadWhereverTheyStandOrRefused) {
  auto parse = [](const json& more) {
    json config{{"model_type", "llama"},          {"vocab_size", 100},        {"hidden_size", 64},
                {"num_hidden_layers", 2},         {"num_attention_heads", 4}, {"intermediate_size", 64},
                {"max_position_embeddings", 4096}};
    config.update(more);
    return parse_hf_config(config, "test");
  };
  const json yarn{{"rope_type", "yarn"}, {"factor", 4.0}, {"rope_theta", 1e4}};
  EXPECT_EQ(parse({{"rope_parameters", yarn}}).rope.original_max_positions, 4096);
  EXPECT_EQ(parse({{"rope_parameters", yarn}, {"original_max_position_embeddings", 1024}}).rope.original_max_positions,
            1024);
  json both = yarn;
  both["original_max_position_embeddings"] = 512;
  EXPECT_EQ(parse({{"rope_parameters", both}}).rope.original_max_positions, 512);
  EXPECT_THROW(parse({{"rope_parameters", both}, {"original_max_position_embeddings", 1024}}), base::Error);
  EXPECT_THROW(parse({{"rope_parameters", {{"full_attention", {{"rope_theta", 100.0}}}}}}), base::Error);
}

TEST(HfConfig, CountsBeyondReasonAreErrorsAndTheTokensThatEndATextAddUp) {
  json config{{"model_type", "llama"},    {"vocab_size", 100},       {"hidden_size", 64}, {"num_hidden_layers", 2},
              {"num_attention_heads", 4}, {"intermediate_size", 64}, {"eos_token_id", 2}};
  ModelSpec spec = parse_hf_config(config, "test");
  add_generation_config({{"eos_token_id", {2, 7}}}, "generation_config.json", spec);
  EXPECT_EQ(spec.eos_tokens, (std::vector<int64_t>{2, 7}));
  for (int64_t heads : {int64_t{-5}, int64_t{99999999999}}) {
    config["sinter_mtp_heads"] = heads;
    EXPECT_THROW(parse_hf_config(config, "test"), base::Error);
  }
}

TEST(HfConfig, ExtraHeadsOfMixtralKeepTheWidthOfTheirMlp) {
  ModelRecipe recipe{.family = "mixtral", .vocab_size = 97, .hidden = 32, .layers = 1, .heads = 2};
  recipe.ffn = 160, recipe.experts = 3, recipe.expert_ffn = 48, recipe.mtp_heads = 1;
  const ModelSpec spec = make_model_spec({.model = recipe, .data = {.sequence_length = 16}}, 97);
  const ModelSpec again = parse_hf_config(make_hf_config(spec, "float32"), "written");
  EXPECT_EQ(again.moe.ffn, 48);
  EXPECT_EQ(again.ffn, 160);
  EXPECT_EQ(count_parameters(again).total, count_parameters(spec).total);
}

TEST(HfConfig, WindowsBelongToTheLayersTheFamilySays) {
  auto windows = [](const char* model_type, const json& more) {
    json config{{"model_type", model_type},   {"vocab_size", 100},        {"hidden_size", 64},
                {"num_hidden_layers", 3},     {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                {"intermediate_size", 64},    {"num_experts", 9},         {"moe_intermediate_size", 32},
                {"use_sliding_window", true}, {"sliding_window", 7},      {"max_window_layers", 1}};
    config.update(more);
    const ModelSpec first = parse_hf_config(config, "test");
    const ModelSpec again = parse_hf_config(make_hf_config(first, "float32"), "written");
    std::vector<int64_t> found;
    for (int64_t l = 0; l < 3; ++l) {
      found.push_back(first.window_of(l));
      EXPECT_EQ(again.window_of(l), first.window_of(l)) << model_type << " layer " << l << " after the round trip";
    }
    return found;
  };
  using Windows = std::vector<int64_t>;
  EXPECT_EQ(windows("qwen2", json::object()), (Windows{0, 7, 7}));
  EXPECT_EQ(windows("qwen3", json::object()), (Windows{0, 7, 7}));
  EXPECT_EQ(windows("qwen3_moe", json::object()), (Windows{7, 7, 7}));
  EXPECT_EQ(windows("qwen3", {{"use_sliding_window", false}}), (Windows{0, 0, 0}));
  EXPECT_EQ(windows("mistral", json::object()), (Windows{7, 7, 7}));
  EXPECT_EQ(windows("qwen2", {{"layer_types", {"sliding_attention", "full_attention", "full_attention"}}}),
            (Windows{7, 0, 0}));
}

TEST(LossChunks, AreEqualMultiplesOfATileWithinTheirBytes) {
  EXPECT_EQ(loss_chunk_rows(65536, 50304, 2), 11008);  // 6 of them; 5 would be too large
  EXPECT_EQ(loss_chunk_rows(100, 50304, 4), 100);
  EXPECT_EQ(loss_chunk_rows(0, 50304, 4), 0);
  EXPECT_EQ(loss_chunk_rows(300, int64_t{1} << 40, 4), 128);  // a row alone is more than a chunk may be
  for (int64_t rows : {1, 127, 129, 11264, 11265, 100001}) {
    for (int64_t vocab : {2, 2048, 32768, 50304, 262144}) {
      const int64_t chunk = loss_chunk_rows(rows, vocab, 2), chunks = (rows + chunk - 1) / chunk;
      EXPECT_TRUE(chunk == rows || chunk % 128 == 0) << rows << " of " << vocab;
      EXPECT_LE(chunk * vocab * 2, int64_t{1088} << 20);
      EXPECT_LT(chunks * chunk - rows, 128 * chunks);  // the last lacks no more than rounding up adds
    }
  }
}

}  // namespace
}  // namespace sinter::spec
