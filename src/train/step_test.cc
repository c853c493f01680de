// What a step minimises: the gradients it leaves are those of the losses it tells.
#include "train/step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "comm/communicator.h"

namespace sinter::train {
namespace {

constexpr int64_t kWindow = 16, kTokens = 4 * kWindow;
constexpr double kMtpWeight = 0.7;

spec::ModelSpec make_llama() {
  spec::ModelSpec s;
  s.vocab_size = 50;
  s.hidden = 32;
  s.num_layers = 2;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = 8;
  s.ffn = 48;
  s.max_positions = kWindow;
  s.rope = {.kind = spec::RopeKind::standard, .theta = 10000.0};
  return s;
}

// Experts with a heavy balance loss, and two extra heads.
spec::ModelSpec with_extras(spec::ModelSpec s) {
  s.family = spec::Family::qwen3_moe;
  s.moe = {.num_experts = 4, .experts_per_token = 2, .ffn = 24, .balance_loss = 0.5f};
  s.sparse_layers = {1, 0};
  s.mtp_heads = 2;
  return s;
}

data::MicroBatch make_batch(uint64_t index) {
  base::CounterRng rng{4, index};
  data::MicroBatch batch;
  for (uint64_t s = 0; s < kTokens / kWindow; ++s) {
    std::vector<int32_t> tokens;
    for (uint64_t t = 0; t < kWindow; ++t) tokens.push_back(static_cast<int32_t>(rng.bits(s * kWindow + t) % 50));
    batch.add_sequence(tokens);
  }
  batch.set_next_token_targets();
  for (size_t t = 0; t < batch.targets.size(); t += 5 + index) batch.targets[t] = -1;  // unequal shares of the step
  for (int32_t target : batch.targets) batch.num_supervised += target >= 0 ? 1 : 0;
  return batch;
}

struct Fixture {
  explicit Fixture(const spec::ModelSpec& spec) : model(spec) {
    store.initialize(3);
    for (auto& slot : store.slots()) {  // wider than initial weights, so that experts differ and slopes show
      std::vector<float> values = store.values_of(slot);
      for (float& v : values) v *= slot.info.role == spec::ParameterRole::router ? 20.0f : 4.0f;
      store.set(slot, values);
    }
  }
  const spec::ModelSpec model;
  const StepShape shape{.num_tokens = kTokens,
                        .num_sequences = kTokens / kWindow,
                        .window = kWindow,
                        .max_micro_batches = 3,
                        .mtp_weight = kMtpWeight};
  models::ParameterStore store{model, {.trains = true}};
  models::Transformer transformer{model, store};
  std::unique_ptr<comm::Communicator> comm = comm::make_self();
  parallel::Mesh mesh{*comm};
  StepRunner runner{transformer, shape, plan_step(model, shape), mesh};
};

TEST(Step, GradientsAreThoseOfAllLossesTogether) {
  Fixture s(with_extras(make_llama()));
  const std::vector<data::MicroBatch> batches{make_batch(0), make_batch(1), make_batch(2)};
  auto objective = [&] {
    const StepResult r = s.runner.run(batches, 0);
    return r.loss + kMtpWeight * r.mtp_loss + static_cast<double>(s.model.moe.balance_loss) * r.balance_loss;
  };
  objective();
  std::vector<std::vector<float>> gradients;
  for (const auto& slot : s.store.slots()) gradients.push_back(s.store.gradient_of(slot));
  for (size_t i = 0; i < gradients.size(); ++i) {
    models::ParameterStore::Slot& slot = s.store.slots()[i];
    const std::vector<float> values = s.store.values_of(slot);
    std::vector<float> moved = values;
    // Along the gradient itself, where the slope is its norm.
    double squares = 0;
    for (float g : gradients[i]) squares += static_cast<double>(g) * static_cast<double>(g);
    const double norm = std::sqrt(squares), step = 1e-3;
    auto at = [&](double distance) {
      for (size_t k = 0; k < values.size(); ++k)
        moved[k] = values[k] + static_cast<float>(distance / norm) * gradients[i][k];
      s.store.set(slot, moved);
      return objective();
    };
    const double slope = (at(step) - at(-step)) / (2 * step);
    s.store.set(slot, values);
    EXPECT_NEAR(slope, norm, 1e-3 + 0.01 * norm) << slot.info.name;
  }
}

TEST(Step, BalanceLossIsTheMeanOverMicroBatches) {
  Fixture s(with_extras(make_llama()));
  double sum = 0;
  for (uint64_t i = 0; i < 3; ++i) sum += s.runner.run({make_batch(i)}, 0).balance_loss;
  EXPECT_NEAR(s.runner.run({make_batch(0), make_batch(1), make_batch(2)}, 0).balance_loss, sum / 3, 1e-6);
  EXPECT_GT(sum / 3, 1.5);  // even shares of the one sparse layer would give experts_per_token
}

TEST(Step, AnEvaluationIsTheLossOfAStepWithoutItsGradients) {
  Fixture s(with_extras(make_llama()));
  const std::vector<data::MicroBatch> batches{make_batch(0), make_batch(1), make_batch(2)};
  EXPECT_NEAR(*s.runner.evaluate(batches), s.runner.run(batches, 0).loss, 1e-6);
}

TEST(Step, TheSmallNormIsThatOfTheFirstMicroBatchAlone) {
  Fixture s(make_llama());
  s.runner.run({make_batch(0)}, 0);
  double squares = 0;
  for (float g : core::to_host_floats(s.store.grad())) squares += static_cast<double>(g) * static_cast<double>(g);
  const StepResult both = s.runner.run({make_batch(0), make_batch(1), make_batch(2)}, 0);
  ASSERT_TRUE(both.small_norm_squared);
  EXPECT_NEAR(*both.small_norm_squared, squares, 1e-4 * squares);
  EXPECT_EQ(both.small_tokens, static_cast<double>(make_batch(0).num_supervised));
}

}  // namespace
}  // namespace sinter::train
