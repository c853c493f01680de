#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "core/host_batch.h"
#include "engine/test_model.h"

namespace sinter::engine {
namespace {

// Random chunks of several sequences mixed in one batch, over a cache of random block size and block order.
void expect_paged_equals_training(const TestModel& model, uint64_t seed) {
  base::CounterRng rng{seed, 9};
  core::DeviceRuntime& device = core::runtime(test_device());
  ops::Context context{kernels::kernels_for(test_device()), device.stream(), device.allocator(), nullptr};
  const int64_t block_size = 1 + rng.bits(0) % 19, num_sequences = 1 + rng.bits(1) % 4, max_blocks = 64;
  const auto num_layers = static_cast<size_t>(model.spec.num_layers);
  const core::KvCache cache(device.allocator(), {.num_blocks = max_blocks * num_sequences,
                                                 .block_size = block_size,
                                                 .num_kv_heads = model.spec.num_kv_heads,
                                                 .head_dim = model.spec.head_dim,
                                                 .formats = std::vector(num_layers, model.store->options().compute),
                                                 .layer_places = {}});
  std::vector<std::vector<int32_t>> sequences, tables;
  std::vector<std::vector<float>> expected;
  std::vector<int64_t> done(static_cast<size_t>(num_sequences), 0);
  for (int64_t s = 0; s < num_sequences; ++s) {
    sequences.push_back(random_tokens(rng, 1000 * static_cast<uint64_t>(s + 1),
                                      5 + rng.bits(10 + static_cast<uint64_t>(s)) % 50, model.spec.vocab_size));
    expected.push_back(training_forward(model, sequences.back()));
    std::vector<int32_t> table;
    for (int64_t b = 0; b < max_blocks; ++b)
      table.push_back(static_cast<int32_t>(cache.num_blocks() - 1 - (b * num_sequences + s)));
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
    TestModel model(name, core::DType::f32);
    for (uint64_t seed = 0; seed < 3; ++seed) expect_paged_equals_training(model, seed);
  }
}

TEST(PagedDecode, EqualsTheTrainingForwardBitForBitInBf16) {
  for (const char* name : {"gpt2", "llama", "mistral", "qwen3_moe"}) {
    TestModel model(name, core::DType::bf16);
    for (uint64_t seed = 10; seed < 13; ++seed) expect_paged_equals_training(model, seed);
  }
}

}  // namespace
}  // namespace sinter::engine
