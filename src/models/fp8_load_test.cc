// Plain folders whose matrices are rounded to fp8 while they are loaded.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/source_dir.h"
#include "core/host_batch.h"
#include "models/open_model.h"

namespace sinter::models {
namespace {

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/models/" + name; }

std::vector<float> logits_of(const OpenModel& model) {
  core::DeviceRuntime& device = core::runtime({});
  core::HostBatch host;
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < 24; ++i) tokens.push_back(static_cast<int32_t>((i * 37 + 5) % model.spec.vocab_size));
  host.add_sequence(tokens);
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  return core::to_host_floats(model.transformer->logits(context, model.transformer->forward(context, batch, {}).value));
}

TEST(Fp8Load, LogitsStayNearThePlainModels) {
  for (const char* name : {"llama", "qwen2", "mixtral"}) {
    const OpenModel plain = open_model(golden(name), {}),
                    fp8 = open_model(golden(name), {.quantize = base::WeightFormat::fp8_e4m3});
    int64_t rounded = 0;
    for (const auto& slot : fp8.store->slots()) rounded += slot.is_apart;
    EXPECT_GE(rounded, 4 * plain.spec.num_layers) << name;
    const std::vector<float> a = logits_of(plain), b = logits_of(fp8);
    double dot = 0, aa = 0, bb = 0, apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      dot += double{a[i]} * b[i], aa += double{a[i]} * a[i], bb += double{b[i]} * b[i];
      apart = std::max(apart, std::abs(double{a[i]} - b[i]));
    }
    const bool is_sparse = plain.spec.moe.num_experts > 0;  // a token between two experts may go to the other
    EXPECT_GT(dot / std::sqrt(aa * bb), is_sparse ? 0.95 : 0.99) << name;
    EXPECT_GT(apart, 0) << name;
  }
}

TEST(Fp8Load, EveryRowReachesItsLargestValue) {
  const OpenModel plain = open_model(golden("llama"), {}),
                  fp8 = open_model(golden("llama"), {.quantize = base::WeightFormat::fp8_e4m3});
  for (const auto& slot : fp8.store->slots()) {
    if (!slot.is_apart) continue;
    const std::vector<float> rounded = fp8.store->values_of(slot);
    const auto& whole = *std::find_if(plain.store->slots().begin(), plain.store->slots().end(),
                                      [&](const auto& s) { return s.info.name == slot.info.name; });
    const std::vector<float> values = plain.store->values_of(whole);
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(rounded[i], values[i], std::abs(values[i]) / 15 + 1e-4) << slot.info.name << " " << i;
  }
}

TEST(Fp8Load, WhatIsNotPlainIsRefused) {
  EXPECT_THROW(
      open_model(base::source_dir() + "/tests/golden/quant/fp8-block128", {.quantize = base::WeightFormat::fp8_e4m3}),
      base::UsageError);
  EXPECT_THROW(parse_quantize("int3"), base::UsageError);
}

}  // namespace
}  // namespace sinter::models
