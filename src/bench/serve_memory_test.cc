// What `sinter plan inference` says of memory, and what serving takes: the same weights and cache, on no device.
#include <gtest/gtest.h>

#include "engine/transformer_runner.h"
#include "models/parameter_store.h"
#include "models/transformer.h"
#include "plan/inference.h"
#include "plan/models.h"

namespace sinter::bench {
namespace {

TEST(ServingMemory, OfWeightsAndCacheIsWithinThreePercentOfThePlan) {
  const core::Device nowhere{core::DeviceKind::shapes, 0};
  core::Allocator& allocator = core::runtime(nowhere).allocator();
  for (const char* name : {"gpt2", "llama-3.2-1b", "llama-3.1-8b", "mistral-7b-v0.1", "qwen3-8b", "mixtral-8x7b"}) {
    const plan::ModelPreset* preset = plan::find_preset(name);
    ASSERT_NE(preset, nullptr) << name;
    const spec::ModelSpec& spec = preset->spec;
    const plan::InferenceModel planned =
        plan::make_inference_model(spec, plan::parse_weight_format("bf16"), plan::MatrixFormat::bf16);
    const size_t before = allocator.stats().current_bytes;
    models::ParameterStore store(spec, {.device = nowhere, .compute = core::DType::bf16});
    const auto weights = static_cast<double>(allocator.stats().current_bytes - before);
    EXPECT_NEAR(weights / planned.stored_bytes, 1, 0.03) << name << ": weights";
    const models::Transformer transformer(spec, store);
    const engine::TransformerRunner runner(transformer);
    const double cache = static_cast<double>(runner.bytes_per_block(16)) / 16;
    EXPECT_NEAR(cache / planned.kv_bytes_per_token(), 1, 0.03) << name << ": cache of a token";
  }
}

}  // namespace
}  // namespace sinter::bench
