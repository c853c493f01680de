#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "base/source_dir.h"
#include "core/host_batch.h"
#include "engine/generator.h"
#include "io/tensor_folder.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::engine {
namespace {

struct Model {
  explicit Model(const std::string& name, core::DType compute, bool keeps_derived = true) {
    std::string folder = base::source_dir() + "/tests/golden/models/" + name;
    spec = spec::load_hf_config(folder + "/config.json");
    store = std::make_unique<models::ParameterStore>(
        spec, models::StoreOptions{.compute = compute, .trains = false, .keeps_derived = keeps_derived});
    models::load_weights(*store, spec, io::TensorFolder(folder));
    transformer = std::make_unique<models::Transformer>(spec, *store);
  }
  spec::ModelSpec spec;
  std::unique_ptr<models::ParameterStore> store;
  std::unique_ptr<models::Transformer> transformer;
};

std::vector<int32_t> random_tokens(const base::CounterRng& rng, uint64_t first, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.bits(first + static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

// Hidden states of whole sequences without a cache: what training computes.
std::vector<float> training_forward(const Model& model, const std::vector<int32_t>& tokens) {
  core::DeviceRuntime& device = core::runtime({});
  core::HostBatch host;
  host.add_sequence(tokens);
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  core::Tensor hidden = model.transformer->forward(context, batch, {}).value;
  return core::to_host_floats(model.transformer->logits(context, hidden));
}

// Random chunks of several sequences mixed in one batch, over a cache of random block size and block order.
void expect_paged_equals_training(const Model& model, uint64_t seed) {
  base::CounterRng rng{seed, 9};
  core::DeviceRuntime& device = core::runtime({});
  ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  const int64_t block_size = 1 + rng.bits(0) % 19, num_sequences = 1 + rng.bits(1) % 4, max_blocks = 64;
  core::KvCache cache{.block_size = block_size, .num_blocks = max_blocks * num_sequences, .keys = {}, .values = {}};
  for (int64_t l = 0; l < model.spec.num_layers; ++l) {
    core::Shape shape{cache.num_blocks, block_size, model.spec.num_kv_heads, model.spec.head_dim};
    cache.keys.emplace_back(device.allocator(), shape, model.store->options().compute);
    cache.values.emplace_back(device.allocator(), shape, model.store->options().compute);
  }
  std::vector<std::vector<int32_t>> sequences, tables;
  std::vector<std::vector<float>> expected;
  std::vector<int64_t> done(static_cast<size_t>(num_sequences), 0);
  for (int64_t s = 0; s < num_sequences; ++s) {
    sequences.push_back(random_tokens(rng, 1000 * static_cast<uint64_t>(s + 1),
                                      5 + rng.bits(10 + static_cast<uint64_t>(s)) % 50, model.spec.vocab_size));
    expected.push_back(training_forward(model, sequences.back()));
    std::vector<int32_t> table;
    for (int64_t b = 0; b < max_blocks; ++b)
      table.push_back(static_cast<int32_t>(cache.num_blocks - 1 - (b * num_sequences + s)));
    tables.push_back(table);
  }
  const auto V = static_cast<size_t>(model.spec.vocab_size);
  for (uint64_t step = 0; step < 200; ++step) {
    core::HostBatch host;
    std::vector<int32_t> slots, flat_tables;
    std::vector<size_t> who;
    for (size_t s = 0; s < sequences.size(); ++s) {
      auto left = static_cast<int64_t>(sequences[s].size()) - done[s];
      int64_t take =
          std::min<int64_t>(left, rng.bits(5000 + step * 8 + s) % 3 == 0 ? 1 : rng.bits(9000 + step * 8 + s) % 12);
      if (take == 0) continue;
      auto begin = sequences[s].begin() + done[s];
      host.add_sequence(std::vector<int32_t>(begin, begin + take), static_cast<int32_t>(done[s]));
      for (int64_t p = done[s]; p < done[s] + take; ++p) {
        slots.push_back(tables[s][static_cast<size_t>(p / block_size)] * static_cast<int32_t>(block_size) +
                        static_cast<int32_t>(p % block_size));
      }
      flat_tables.insert(flat_tables.end(), tables[s].begin(), tables[s].end());
      who.push_back(s);
    }
    if (who.empty()) continue;
    core::RaggedBatch batch = core::upload(device.allocator(), host);
    core::KvView kv{&cache, core::make_tensor(device.allocator(), {host.num_sequences(), max_blocks}, flat_tables),
                    core::make_tensor(device.allocator(), {host.num_tokens()}, slots)};
    batch.kv = &kv;
    core::Tensor hidden = model.transformer->forward(context, batch, {}).value;
    std::vector<float> logits = core::to_host_floats(model.transformer->logits(context, hidden));
    for (size_t i = 0; i < who.size(); ++i) {
      size_t s = who[i];
      auto begin = static_cast<size_t>(host.offsets[i]), end = static_cast<size_t>(host.offsets[i + 1]);
      for (size_t t = begin; t < end; ++t, ++done[s]) {
        for (size_t v = 0; v < V; ++v) {
          ASSERT_EQ(logits[t * V + v], expected[s][static_cast<size_t>(done[s]) * V + v])
              << "seed " << seed << " block size " << block_size << " sequence " << s << " position " << done[s];
        }
      }
    }
  }
  for (size_t s = 0; s < sequences.size(); ++s) EXPECT_EQ(done[s], static_cast<int64_t>(sequences[s].size()));
}

TEST(PagedDecode, EqualsTheTrainingForwardBitForBitInFp32) {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen3", "mixtral"}) {
    Model model(name, core::DType::f32);
    for (uint64_t seed = 0; seed < 3; ++seed) expect_paged_equals_training(model, seed);
  }
}

TEST(PagedDecode, EqualsTheTrainingForwardBitForBitInBf16) {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen3_moe"}) {
    Model model(name, core::DType::bf16);
    for (uint64_t seed = 10; seed < 13; ++seed) expect_paged_equals_training(model, seed);
  }
}

// Past the trained length every new token changes all rotations, so that keys in the cache are of no use.
TEST(Generator, DynamicRopePastTheTrainedLengthIsTheWholeSequencesOwn) {
  Model model("llama", core::DType::f32);
  model.spec.rope.kind = spec::RopeKind::dynamic;
  model.spec.rope.factor = 4.0;
  model.spec.rope.original_max_positions = 16;
  model.transformer = std::make_unique<models::Transformer>(model.spec, *model.store);
  base::CounterRng rng{4, 4};
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 4; ++i) {  // some begin inside the trained length, some past it
    requests.push_back({.prompt = random_tokens(rng, i * 100, 3 + 7 * static_cast<int64_t>(i), model.spec.vocab_size),
                        .sampling = {.temperature = 0.0f},
                        .max_new_tokens = 24});
  }
  Generator generator(*model.transformer, {.block_size = 4, .step_tokens = 5, .max_sequences = 3});
  const std::vector<Result> results = generator.run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    std::vector<int32_t> tokens = requests[i].prompt;
    for (int32_t token : results[i].tokens) {
      const std::vector<float> logits = training_forward(model, tokens);
      const auto last = logits.end() - model.spec.vocab_size;
      ASSERT_EQ(token, std::max_element(last, logits.end()) - last) << "request " << i << " behind " << tokens.size();
      tokens.push_back(token);
    }
    EXPECT_EQ(results[i].tokens.size(), 24u);
  }
}

TEST(Generator, ARequestAloneEqualsTheSameOneAmongOthers) {
  Model model("llama", core::DType::f32);
  base::CounterRng rng{3, 3};
  std::vector<Request> requests;
  for (uint64_t i = 0; i < 9; ++i) {
    Request r;
    r.prompt = random_tokens(rng, i * 100, 1 + static_cast<int64_t>(i) * 5, model.spec.vocab_size);
    r.sampling = {.temperature = 0.9f, .top_k = 40, .top_p = 0.95f, .min_p = 0.0f, .seed = i};
    r.max_new_tokens = 10 + static_cast<int64_t>(i);
    requests.push_back(r);
  }
  Generator together(*model.transformer, {.block_size = 4, .cache_tokens = 200, .step_tokens = 17, .max_sequences = 5});
  std::vector<Result> all = together.run(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    Generator alone(*model.transformer, {});
    EXPECT_EQ(alone.run({requests[i]})[0].tokens, all[i].tokens) << i;
    EXPECT_EQ(static_cast<int64_t>(all[i].tokens.size()), requests[i].max_new_tokens);
  }
}

TEST(Generator, StopsAtAStopTokenAndRefusesBadRequests) {
  Model model("llama", core::DType::f32);
  Generator generator(*model.transformer, {});
  Request r{.prompt = {5, 6, 7}, .sampling = {.temperature = 0}, .max_new_tokens = 8, .stop_tokens = {}};
  std::vector<int32_t> tokens = generator.run({r})[0].tokens;
  ASSERT_EQ(tokens.size(), 8u);
  r.stop_tokens = {tokens[3]};
  Result stopped = generator.run({r})[0];
  EXPECT_EQ(stopped.reason, FinishReason::stop);
  EXPECT_LE(stopped.tokens.size(), 3u);
  EXPECT_THROW(generator.run({Request{}}), base::Error);
  EXPECT_THROW(generator.run({Request{.prompt = {100000}}}), base::Error);
  r.sampling.top_p = 0;
  EXPECT_THROW(generator.run({r}), base::UsageError);
}

TEST(Generator, NoRequestsGiveNoResults) {
  Model model("llama", core::DType::f32);
  Generator generator(*model.transformer, {});
  EXPECT_TRUE(generator.run({}).empty());
}

TEST(Generator, ARequestIsRefusedByItsName) {
  Model model("llama", core::DType::f32);
  Generator generator(*model.transformer, {});
  generator.check({.prompt = {5}}, "in.jsonl:3");
  try {
    generator.check({.prompt = {100000}}, "in.jsonl:3");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_TRUE(std::string(e.what()).starts_with("in.jsonl:3: token 100000")) << e.what();
  }
}

TEST(Sampler, LogitsThatAreNotFiniteAreAnError) {
  const float nan = std::nanf(""), infinity = INFINITY;
  const std::vector<std::vector<float>> bad{
      {nan, 1, 2}, {1, nan, 2}, {1, 2, nan}, {nan, nan, nan}, {-infinity, -infinity}, {1, infinity}};
  for (const std::vector<float>& logits : bad) {
    EXPECT_THROW(sample_token(logits, {.temperature = 0}, 0), base::Error) << logits[0] << " " << logits[1];
    EXPECT_THROW(sample_token(logits, {.temperature = 0.8f, .top_p = 0.95f}, 0), base::Error);
    EXPECT_THROW(sample_token(logits, {.top_k = 2}, 0), base::Error);
  }
  const std::vector<float> masked{-infinity, 1, -infinity};  // tokens that must not come
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(sample_token(masked, {}, i), 1);
}

TEST(Sampler, FollowsTheDistributionItsFiltersLeave) {
  std::vector<float> logits{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  auto shares = [&](SamplingOptions options) {
    std::vector<double> share(4, 0);
    for (uint64_t i = 0; i < 20000; ++i) share[static_cast<size_t>(sample_token(logits, options, i))] += 1.0 / 20000;
    return share;
  };
  auto all = shares({});
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(all[i], std::exp(logits[i]), 0.015);
  EXPECT_NEAR(shares({.top_k = 2})[0], 0.5 / 0.8, 0.015);
  EXPECT_EQ(shares({.top_k = 2})[2], 0);
  EXPECT_EQ(shares({.top_p = 0.75f})[2], 0);
  EXPECT_EQ(shares({.min_p = 0.2f})[3], 0);
  EXPECT_GT(shares({.min_p = 0.2f})[2], 0);
  EXPECT_EQ(shares({.temperature = 0})[1], 0);
}

TEST(BlockPool, GivesEachBlockOnce) {
  BlockPool pool(3);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 1);
  pool.release(0);
  EXPECT_EQ(pool.allocate(), 0);
  EXPECT_EQ(pool.allocate(), 2);
  EXPECT_THROW(pool.allocate(), base::Error);
  pool.release(1);
  EXPECT_THROW(pool.release(1), base::Error);
}

}  // namespace
}  // namespace sinter::engine
