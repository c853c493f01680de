// Keys and values in another format than the model's.
#include <gtest/gtest.h>

#include <cmath>

#include "engine/batch.h"
#include "engine/test_model.h"

namespace sinter::engine {
namespace {

struct Served {
  std::vector<float> logprobs;  // of a prompt's tokens and of what was generated
  int64_t kv_bytes = 0;
};

Served serve(const TestModel& model, core::DType kv_format, const std::vector<int64_t>& plain_layers) {
  Engine engine(*model.transformer,
                {.kv_tokens = 600, .step_tokens = 17, .kv_format = kv_format, .kv_plain_layers = plain_layers});
  std::vector<Request> requests(3);
  for (uint64_t i = 0; i < requests.size(); ++i) {
    requests[i].prompt = random_tokens({21, i}, 0, 20 + static_cast<int64_t>(i) * 9, model.spec.vocab_size);
    requests[i].sampling.temperature = 0;
    requests[i].max_new_tokens = 1;  // later ones may be other tokens
    requests[i].logprobs = 0;
    requests[i].prompt_logprobs = 0;
  }
  Served served;
  for (const auto& choices : run_batch(engine, requests)) {
    for (const OutputToken& t : choices[0].prompt_tokens) served.logprobs.push_back(t.logprob);
  }
  served.kv_bytes = engine.stats().kv_bytes;
  return served;
}

TEST(KvFormat, Fp8TakesHalfTheMemoryAndChangesLogprobsLittle) {
  for (const char* name : {"llama", "qwen3", "mistral"}) {
    const TestModel model(name, core::DType::bf16);
    const Served plain = serve(model, core::DType::f32, {}), fp8 = serve(model, core::DType::f8e4m3, {});
    EXPECT_LT(fp8.kv_bytes, plain.kv_bytes * 3 / 4) << name;
    double difference = 0;
    for (size_t i = 0; i < plain.logprobs.size(); ++i) difference += std::abs(plain.logprobs[i] - fp8.logprobs[i]);
    difference /= static_cast<double>(plain.logprobs.size());
    EXPECT_GT(difference, 0) << name;
    EXPECT_LT(difference, 0.05) << name;
  }
}

TEST(KvFormat, LayersThatKeepTheirFormatAreWhatTheyWere) {
  const TestModel model("llama", core::DType::bf16);
  std::vector<int64_t> all;
  for (int64_t l = 0; l < model.spec.num_layers; ++l) all.push_back(l);
  const Served plain = serve(model, core::DType::f32, {});
  EXPECT_EQ(serve(model, core::DType::f8e4m3, all).logprobs, plain.logprobs);
  all.pop_back();
  EXPECT_NE(serve(model, core::DType::f8e4m3, all).logprobs, plain.logprobs);
}

TEST(KvFormat, ALayerThatTheModelLacksIsRefusedByNumber) {
  const TestModel model("llama", core::DType::bf16);
  try {
    serve(model, core::DType::f8e4m3, {99});
    FAIL() << "layer 99 was taken";
  } catch (const base::UsageError& e) {
    EXPECT_NE(std::string(e.what()).find("99"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sinter::engine
