#include "spec/rope.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/source_dir.h"
#include "spec/hf_config.h"

namespace sinter::spec {
namespace {

using nlohmann::json;

// tests/golden/rope.py wrote the answers of transformers down.
TEST(Rope, EveryScalingTurnsAsInTransformers) {
  const json cases = json::parse(std::ifstream(base::source_dir() + "/tests/golden/rope.json"));
  ASSERT_GE(cases.size(), 12u);
  for (const json& golden : cases) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto head_dim = golden["head_dim"].get<int64_t>();
    const json config{{"model_type", "llama"},
                      {"vocab_size", 100},
                      {"hidden_size", 4 * head_dim},
                      {"num_hidden_layers", 1},
                      {"num_attention_heads", 4},
                      {"head_dim", head_dim},
                      {"intermediate_size", 64},
                      {"max_position_embeddings", golden["max_position_embeddings"]},
                      {"rope_parameters", golden["rope_parameters"]}};
    const RopeSpec rope = parse_hf_config(config, "test").rope;
    const auto expected = golden["inv_freq"].get<std::vector<float>>();
    const std::vector<float> found = rope_inv_freq(rope, head_dim, golden["length"].get<int64_t>());
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 2e-6f * expected[i]) << i;
    EXPECT_NEAR(rope_scale(rope), golden["scale"].get<float>(), 1e-6f);
  }
}

}  // namespace
}  // namespace sinter::spec
