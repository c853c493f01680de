// The engine over real models: its tokens and log-probabilities are the model's own whatever it does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "engine/batch.h"
#include "engine/test_model.h"
#include "engine/transformer_runner.h"
#include "models/open_model.h"

namespace sinter::engine {
namespace {

std::vector<Request> mixed_requests(const spec::ModelSpec& spec) {
  const base::CounterRng rng{3, 3};
  std::vector<Request> requests;
  const std::vector<int32_t> beginning = random_tokens(rng, 5000, 13, spec.vocab_size);
  for (uint64_t i = 0; i < 9; ++i) {
    Request r;
    r.prompt = i % 3 == 0 ? std::vector<int32_t>{} : beginning;  // many begin alike
    for (int32_t t : random_tokens(rng, i * 100, 1 + static_cast<int64_t>(i) * 4, spec.vocab_size))
      r.prompt.push_back(t);
    r.sampling = {.temperature = i % 2 ? 0.9f : 0.0f, .top_k = 40, .top_p = 0.95f, .seed = i};
    r.max_new_tokens = 8 + static_cast<int64_t>(i) % 7;
    r.logprobs = 0;
    requests.push_back(r);
  }
  return requests;
}

struct Answers {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<float>> logprobs;
  EngineStats stats;
  bool operator==(const Answers& o) const { return tokens == o.tokens && logprobs == o.logprobs; }
};

Answers run(const TestModel& model, const EngineOptions& options, const std::vector<Request>& requests) {
  Engine engine(*model.transformer, options);
  Answers result;
  for (auto& choices : run_batch(engine, requests)) {
    result.tokens.push_back(choices[0].tokens);
    result.logprobs.push_back(choices[0].logprobs);
  }
  result.stats = engine.stats();
  EXPECT_EQ(result.stats.kv_blocks_used, 0);
  return result;
}

// Each alone, everything in one step, no prefix of another.
Answers run_alone(const TestModel& model, const std::vector<Request>& requests) {
  Answers result;
  for (const Request& request : requests) {
    Answers one = run(model, {.kv_tokens = 400, .step_tokens = 4096, .prefix_cache = false}, {request});
    result.tokens.push_back(one.tokens[0]);
    result.logprobs.push_back(one.logprobs[0]);
  }
  return result;
}

// A model, requests and what each of them gives alone: made once for all tests of a parameter.
struct Fixture {
  Fixture(const char* name, core::DType compute) : model(name, compute) {}
  TestModel model;
  std::vector<Request> requests = mixed_requests(model.spec);
  Answers alone = run_alone(model, requests);
};

class Invariance : public testing::TestWithParam<std::pair<const char*, core::DType>> {
 protected:
  static Fixture& fixture() {
    static std::map<std::pair<std::string, core::DType>, Fixture> made;
    return made.try_emplace(std::pair<std::string, core::DType>(GetParam()), GetParam().first, GetParam().second)
        .first->second;
  }
  TestModel& model_ = fixture().model;
  const std::vector<Request>& requests_ = fixture().requests;
  const Answers& alone_ = fixture().alone;
};

TEST_P(Invariance, BatchMixChangesNothing) {
  EXPECT_EQ(run(model_, {.kv_tokens = 4000, .step_tokens = 4096, .prefix_cache = false}, requests_), alone_);
}
TEST_P(Invariance, ChunkingChangesNothing) {
  for (int64_t step_tokens : {1, 7, 33}) {
    const Answers chunked = run(model_, {.kv_tokens = 4000, .block_size = 5, .step_tokens = step_tokens}, requests_);
    EXPECT_EQ(chunked, alone_) << step_tokens;
  }
}
TEST_P(Invariance, APrefixHitChangesNothing) {
  Engine engine(*model_.transformer, {.kv_tokens = 4000, .block_size = 4});
  run_batch(engine, requests_);
  const int64_t before = engine.stats().cached_tokens;
  const auto again = run_batch(engine, requests_);
  EXPECT_GT(engine.stats().cached_tokens - before, 100);
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i][0].tokens, alone_.tokens[i]) << i;
    EXPECT_EQ(again[i][0].logprobs, alone_.logprobs[i]) << i;
  }
}
TEST_P(Invariance, PreemptionChangesNothing) {
  std::vector<Request> requests(requests_.begin(), requests_.begin() + 5);
  for (Request& r : requests) {  // short prompts, long answers: all are let in, and then there is no room
    r.prompt.resize(std::min<size_t>(r.prompt.size(), 6));
    r.max_new_tokens = 24;
  }
  const Answers alone = run_alone(model_, requests);
  for (bool prefix_cache : {false, true}) {
    const EngineOptions tight{
        .kv_tokens = 60, .block_size = 4, .checks_every_step = true, .prefix_cache = prefix_cache};
    const Answers answers = run(model_, tight, requests);
    EXPECT_EQ(answers, alone);
    EXPECT_GT(answers.stats.preemptions, 0);
  }
}
TEST_P(Invariance, FixedShapesChangeNothing) {
  EXPECT_EQ(run(model_, {.kv_tokens = 4000, .step_tokens = 50, .fixed_shapes = true}, requests_), alone_);
}
// Tokens chosen by the sampling kernel and taken from there by the next step, which is enqueued before they are known.
TEST_P(Invariance, LookingAheadChangesNothing) {
  for (bool looks_ahead : {false, true}) {
    Engine engine(std::make_unique<TransformerRunner>(*model_.transformer,
                                                      RunnerOptions{.fixed_shapes = looks_ahead, .chooses = true}),
                  {.kv_tokens = 300, .block_size = 4, .step_tokens = 23, .looks_ahead = looks_ahead});
    const auto completions = run_batch(engine, requests_);
    for (size_t i = 0; i < requests_.size(); ++i) {
      EXPECT_EQ(completions[i][0].tokens, alone_.tokens[i]) << "request " << i;
      EXPECT_EQ(completions[i][0].logprobs, alone_.logprobs[i]) << "request " << i;
    }
  }
}
TEST_P(Invariance, ARestartChangesNothing) {
  const TestModel again(GetParam().first, GetParam().second);
  EXPECT_EQ(run(again, {.kv_tokens = 600, .block_size = 3, .step_tokens = 19}, requests_), alone_);
}
TEST_P(Invariance, LogprobsAreTheTrainingForwardsBitForBit) {
  std::vector<Request> requests = requests_;
  for (Request& r : requests) r.prompt_logprobs = 0;
  Engine engine(*model_.transformer, {.kv_tokens = 150, .block_size = 4, .step_tokens = 23});
  const auto completions = run_batch(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const Completion& c = completions[i][0];
    std::vector<int32_t> tokens = requests[i].prompt;
    tokens.insert(tokens.end(), c.tokens.begin(), c.tokens.end());
    std::vector<float> served;
    for (const OutputToken& t : c.prompt_tokens) served.push_back(t.logprob);
    served.insert(served.end(), c.logprobs.begin(), c.logprobs.end());
    EXPECT_EQ(served, training_logprobs(model_, tokens)) << "request " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Invariance,
    testing::Values(std::pair{"gpt2", core::DType::f32}, std::pair{"llama", core::DType::f32},
                    std::pair{"mistral", core::DType::f32}, std::pair{"mixtral", core::DType::f32},
                    std::pair{"llama", core::DType::bf16}, std::pair{"qwen3", core::DType::bf16},
                    std::pair{"mistral", core::DType::bf16}, std::pair{"mixtral", core::DType::bf16},
                    std::pair{"qwen3_moe", core::DType::bf16}, std::pair{"qwen2", core::DType::f32}),
    [](const auto& info) {
      return std::string(info.param.first) + (info.param.second == core::DType::f32 ? "Fp32" : "Bf16");
    });

// Matrices that stay in the mapped file give the bits of those that were copied, from the first step on and later.
TEST(Engine, MappedWeightsGiveTheBitsOfCopiedOnes) {
  for (core::DType format : {core::DType::f32, core::DType::bf16}) {
    for (const char* name : {"llama", "qwen2", "gpt2", "mixtral"}) {
      const TestModel source(name, core::DType::f32);
      const std::string folder = testing::TempDir() + "/mapped_" + name + std::string(base::dtype_name(format));
      std::filesystem::create_directories(folder);
      models::save_weights(*source.store, folder, format);
      std::filesystem::copy_file(base::source_dir() + "/tests/golden/models/" + name + "/config.json",
                                 folder + "/config.json", std::filesystem::copy_options::overwrite_existing);
      const models::OpenModel copied = models::open_model(folder, {.compute = format});
      const models::OpenModel mapped = models::open_model(folder, {.compute = format, .maps = true});
      int64_t apart = 0;
      for (const auto& slot : mapped.store->slots()) apart += slot.is_apart;
      EXPECT_EQ(apart > 0, name != std::string("gpt2") || source.spec.tied_head) << name;
      Engine plain(*copied.transformer, {.kv_tokens = 4000}), other(*mapped.transformer, {.kv_tokens = 4000});
      for (int turn = 0; turn < 2; ++turn) {
        const auto expected = run_batch(plain, mixed_requests(source.spec));
        const auto made = run_batch(other, mixed_requests(source.spec));
        for (size_t i = 0; i < made.size(); ++i) {
          EXPECT_EQ(made[i][0].tokens, expected[i][0].tokens) << name << " " << i;
          EXPECT_EQ(made[i][0].logprobs, expected[i][0].logprobs) << name << " " << i;
        }
      }
      std::filesystem::remove_all(folder);
    }
  }
}

// What a step needs is there from the beginning: the device is asked for nothing while a full batch decodes.
TEST(Engine, StepsTakeNoMemoryFromTheDevice) {
  TestModel model("llama", core::DType::bf16);
  Engine engine(*model.transformer, {.kv_tokens = 8 * 320, .max_running = 8});
  for (uint64_t i = 0; i < 8; ++i) {
    engine.submit({.prompt = random_tokens({9, i}, 0, 12, model.spec.vocab_size),
                   .sampling = {.seed = i},
                   .max_new_tokens = 300,
                   .logprobs = 0});
  }
  const core::MemoryStats& memory = core::runtime({}).allocator().stats();
  for (int i = 0; i < 20; ++i) engine.step();
  const size_t before = memory.current_bytes;
  core::runtime({}).allocator().reset_peak();
  while (engine.step()) EXPECT_EQ(memory.current_bytes, before) << engine.stats().num_steps;
  EXPECT_EQ(memory.peak_bytes, before);
  EXPECT_GE(engine.stats().num_steps, 300);
}

// Past the trained length every new token changes all rotations, so that keys in the cache are of no use.
TEST(Engine, DynamicRopePastTheTrainedLengthIsTheWholeSequencesOwn) {
  TestModel model("llama", core::DType::f32);
  model.spec.rope.kind = spec::RopeKind::dynamic;
  model.spec.rope.factor = 4.0;
  model.spec.rope.original_max_positions = 16;
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  const base::CounterRng rng{4, 4};
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) {  // some begin inside the trained length, some past it; two begin alike
    requests.push_back(
        {.prompt = random_tokens(rng, i / 2 * 100, 3 + 7 * static_cast<int64_t>(i), model.spec.vocab_size),
         .sampling = {.temperature = 0.0f},
         .max_new_tokens = 24});
  }
  Engine engine(*model.transformer, {.kv_tokens = 200, .block_size = 4, .step_tokens = 5, .max_running = 3});
  const auto results = run_batch(engine, requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> tokens = requests[i].prompt;
    for (int32_t token : results[i][0].tokens) {
      const std::vector<float> logits = training_forward(model, tokens);
      const auto last = logits.end() - model.spec.vocab_size;
      ASSERT_EQ(token, std::max_element(last, logits.end()) - last) << "request " << i << " behind " << tokens.size();
      tokens.push_back(token);
    }
    EXPECT_EQ(results[i][0].tokens.size(), 24u);
  }
}

TEST(Engine, BlocksBehindASlidingWindowAreReleased) {
  TestModel model("mistral", core::DType::f32);
  int64_t window = model.spec.window_of(0);
  ASSERT_GT(window, 0);
  Request r{.prompt = {5, 6, 7}, .sampling = {.temperature = 0}, .max_new_tokens = window + 400, .logprobs = 0};
  Engine engine(*model.transformer, {.kv_tokens = window + 500, .block_size = 8});
  int64_t most = 0;
  BatchCallbacks callbacks;
  callbacks.on_token = [&](size_t, int32_t, int32_t) {
    most = std::max(most, engine.stats().kv_blocks_used);
    return true;
  };
  const Completion c = run_batch(engine, {r}, callbacks)[0][0];
  EXPECT_LT(most, (window + 128 + 3 * 8) / 8);
  std::vector<int32_t> tokens = r.prompt;
  tokens.insert(tokens.end(), c.tokens.begin(), c.tokens.end());
  const std::vector<float> expected = training_logprobs(model, tokens);
  EXPECT_EQ(c.logprobs, std::vector<float>(expected.begin() + 2, expected.end()));
}

TEST(Engine, ScoresAreTheSumOfTheModelsLogprobs) {
  TestModel model("llama", core::DType::f32);
  const base::CounterRng rng{8, 8};
  const std::vector<int32_t> context = random_tokens(rng, 0, 30, model.spec.vocab_size);
  std::vector<ScoreRequest> requests;
  for (uint64_t i = 0; i < 4; ++i)
    requests.push_back(
        {context, random_tokens(rng, 100 * (i + 1), 3 + static_cast<int64_t>(i), model.spec.vocab_size)});
  Engine engine(*model.transformer, {.kv_tokens = 500, .block_size = 4, .step_tokens = 40});
  int64_t told = 0;
  const std::vector<TokenScore> scores = score(engine, requests, [&](int64_t done, int64_t) { told = done; });
  EXPECT_EQ(told, 4);
  EXPECT_GT(engine.stats().cached_tokens, 0);  // the context is computed once
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> tokens = context;
    tokens.insert(tokens.end(), requests[i].continuation.begin(), requests[i].continuation.end());
    const std::vector<float> expected = training_logprobs(model, tokens);
    EXPECT_EQ(scores[i].logprobs, std::vector<float>(expected.begin() + 29, expected.end()));
    EXPECT_FALSE(scores[i].is_greedy);
  }
  // A greedy continuation is known as such.
  Request r{.prompt = context, .sampling = {.temperature = 0}, .max_new_tokens = 5};
  const std::vector<int32_t> likeliest = run_batch(engine, {r})[0][0].tokens;
  EXPECT_TRUE(score(engine, {{context, likeliest}})[0].is_greedy);
}

TEST(Engine, EmbeddingsAreTheForwardsLastHiddenState) {
  for (core::DType dtype : {core::DType::f32, core::DType::bf16}) {
    TestModel model("llama", dtype);
    const std::vector<int32_t> prompt = random_tokens({7, 7}, 0, 23, model.spec.vocab_size);
    const core::Device on = model.transformer->store().options().device;
    core::DeviceRuntime& device = core::runtime(on);
    core::HostBatch host;
    host.add_sequence(prompt);
    const core::RaggedBatch whole = core::upload(device.allocator(), host);
    const ops::Context context{kernels::kernels_for(on), device.stream(), device.allocator(), nullptr};
    const core::Tensor hidden = model.transformer->forward(context, whole, {}).value;  // (T, C)
    const std::vector<float> expected = core::to_host_floats(hidden.slice(22, 1));
    Engine engine(*model.transformer, {.kv_tokens = 200, .block_size = 4, .step_tokens = 5});
    for (int turn = 0; turn < 2; ++turn) {  // the second finds the prompt's beginning in the prefix cache
      engine.submit({.prompt = prompt, .max_new_tokens = 1, .embeds = true});
      while (engine.has_work()) engine.step();
      const std::vector<Output> outputs = engine.take_outputs();
      ASSERT_EQ(outputs.size(), 1u);
      EXPECT_EQ(outputs[0].finish, FinishReason::stop);
      EXPECT_TRUE(outputs[0].tokens.empty());
      EXPECT_EQ(outputs[0].embedding, expected);
      EXPECT_EQ(outputs[0].usage.cached_tokens > 0, turn == 1);
    }
  }
}

TEST(Engine, TopLogprobsAreOrderedAndHoldTheGreedyToken) {
  TestModel model("llama", core::DType::f32);
  Engine engine(*model.transformer, {.kv_tokens = 100});
  const Request r{.prompt = {5, 6, 7}, .sampling = {.temperature = 0}, .max_new_tokens = 6, .logprobs = 5};
  const Completion c = run_batch(engine, {r})[0][0];
  ASSERT_EQ(c.details.size(), 6u);
  for (const OutputToken& t : c.details) {
    ASSERT_EQ(t.top.size(), 5u);
    EXPECT_EQ(t.top[0].token, t.token);
    EXPECT_EQ(t.top[0].logprob, t.logprob);
    EXPECT_EQ(t.rank, 0);
    for (size_t i = 1; i < 5; ++i) EXPECT_GE(t.top[i - 1].logprob, t.top[i].logprob);
  }
}

}  // namespace
}  // namespace sinter::engine
