// Passes that are captured once and replayed: the same bits as without, on the CPU and on a GPU where there is one.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "comm/communicator.h"
#include "kernels/choices.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace sinter::train {
namespace {

using core::DType;

constexpr int64_t kWindow = 64, kTokens = 4 * kWindow, kVocab = 160;

// In a batch of kTokens: bound on those of kWindow / 2 to kWindow tokens, or count of whole windows.
int64_t num_sequences(bool is_ragged) { return kTokens / kWindow * (is_ragged ? 2 : 1); }

struct Case {
  const char* name;
  spec::ModelSpec model;
  DType compute = DType::f32;
  bool fp8 = false;
  autograd::Recompute recompute = autograd::Recompute::none;
};

spec::ModelSpec llama() {
  spec::ModelSpec s;
  s.vocab_size = kVocab;
  s.hidden = 64;
  s.num_layers = 2;
  s.num_heads = 4;
  s.num_kv_heads = 2;
  s.head_dim = 16;
  s.ffn = 96;
  s.max_positions = kWindow;
  s.tied_head = true;
  s.rope = {.kind = spec::RopeKind::standard, .theta = 10000.0};
  return s;
}

spec::ModelSpec gpt2() {
  spec::ModelSpec s = llama();
  s.family = spec::Family::gpt2;
  s.num_kv_heads = 4;
  s.ffn = 256;
  s.rope = {};
  s.norm = spec::NormKind::layer;
  s.activation = spec::Activation::gelu_tanh;
  s.gated_mlp = false;
  s.learned_positions = true;
  s.qkv_bias = s.out_bias = s.mlp_bias = true;
  return s;
}

spec::ModelSpec with_experts(spec::ModelSpec s) {
  s.family = spec::Family::qwen3_moe;
  s.moe = {.num_experts = 4, .experts_per_token = 2, .ffn = 32, .balance_loss = 0.01f};
  return s;
}

spec::ModelSpec with_extra_head(spec::ModelSpec s) {
  s.mtp_heads = 1;
  return s;
}

// Sequences of one length, or (is_ragged) of others in every batch; as many tokens either way.
data::MicroBatch make_batch(uint64_t index, bool is_ragged) {
  base::CounterRng rng{9, index};
  data::MicroBatch batch;
  for (int64_t left = kTokens; left > 0;) {
    const auto shorter = static_cast<int64_t>(rng.bits(static_cast<uint64_t>(left)) % (kWindow / 2));
    const int64_t length = std::min(left, kWindow - (is_ragged ? shorter : 0));
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < length; ++t) {
      tokens.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(left * kWindow + t)) % 8));
    }
    batch.add_sequence(tokens);
    left -= length;
  }
  batch.pad_sequences(num_sequences(is_ragged));
  batch.set_next_token_targets();
  for (int32_t target : batch.targets) batch.num_supervised += target >= 0 ? 1 : 0;
  return batch;
}

struct Trained {
  std::vector<double> losses, mtp_losses, balance_losses, small_norms;
  std::vector<float> weights, gradients;
  int64_t num_replays = 0;
};

// Seven steps of three micro-batches, the fourth of one, and a validation in between.
Trained train(const Case& c, core::Device where, bool graphs, bool is_ragged) {
  core::DeviceRuntime& device = core::runtime(where);
  const StepShape shape{.num_tokens = kTokens,
                        .num_sequences = num_sequences(is_ragged),
                        .window = kWindow,
                        .max_micro_batches = 3,
                        .recompute = c.recompute,
                        .compute = c.compute,
                        .fp8 = c.fp8,
                        .mtp_weight = 0.3,
                        .graphs = graphs};
  models::ParameterStore store(c.model, {.device = where, .compute = c.compute, .trains = true});
  store.initialize(3);
  models::Transformer transformer(c.model, store);
  Optimizer optimizer({}, store);
  auto comm = comm::make_self();
  const parallel::Mesh mesh(*comm);
  StepRunner runner(transformer, shape, plan_step(c.model, shape), mesh);
  const core::Tensor control = core::make_tensor<float>(device.allocator(), {2}, {1.0f, 1.0f});
  Trained out;
  for (uint64_t step = 0; step < 7; ++step) {
    std::vector<data::MicroBatch> batches;
    for (uint64_t i = 0; i < (step == 3 ? 1 : 3); ++i) batches.push_back(make_batch(10 * step + i, is_ragged));
    const StepResult result = runner.run(batches, static_cast<int64_t>(step));
    out.losses.push_back(result.loss);
    out.mtp_losses.push_back(result.mtp_loss);
    out.balance_losses.push_back(result.balance_loss);
    out.small_norms.push_back(result.small_norm_squared.value_or(-1));
    // A replay marks them all, so a pass that runs as it is must do so too.
    for (const auto& slot : store.slots()) EXPECT_TRUE(slot.parameter.grad.accumulates()) << slot.info.name;
    optimizer.update(control, 1.0, static_cast<int64_t>(step));
    if (step == 4) out.losses.push_back(*runner.evaluate({make_batch(1000, is_ragged), make_batch(1001, is_ragged)}));
  }
  out.weights = core::to_host_floats(store.master());
  out.gradients = core::to_host_floats(store.grad());
  out.num_replays = runner.num_replays();
  return out;
}

void expect_equal(const Case& c, core::Device where) {
  for (bool is_ragged : {false, true}) {
    SCOPED_TRACE(std::string(c.name) + (is_ragged ? ", documents" : ", equal lengths"));
    const Trained without = train(c, where, false, is_ragged), with = train(c, where, true, is_ragged);
    EXPECT_EQ(without.num_replays, 0);
    // The first pass of both kinds runs as it is, and with fp8 the whole first step, which finds the scales.
    EXPECT_EQ(with.num_replays, 19 - 2 - (c.fp8 ? 3 : 0));
    EXPECT_EQ(with.losses, without.losses);
    EXPECT_EQ(with.mtp_losses, without.mtp_losses);
    EXPECT_EQ(with.balance_losses, without.balance_losses);
    EXPECT_EQ(with.small_norms, without.small_norms);
    EXPECT_TRUE(with.gradients == without.gradients);
    EXPECT_TRUE(with.weights == without.weights);
    EXPECT_LT(with.losses.back(), with.losses.front());
  }
}

TEST(StepGraphs, OnTheCpuReplayedPassesGiveTheSameBits) { expect_equal({"llama", with_extra_head(llama())}, {}); }

TEST(StepGraphs, OnAGpuReplayedPassesGiveTheSameBits) {
  if (!core::cuda_runtime(0)) GTEST_SKIP() << "no GPU";
  const core::Device gpu{core::DeviceKind::cuda, 0};
  kernels::set_deterministic(gpu);
  using autograd::Recompute;
  for (const Case& c :
       {Case{"llama f32", llama()}, Case{"llama bf16", llama(), DType::bf16}, Case{"gpt2 bf16", gpt2(), DType::bf16},
        Case{"gpt2 f16, selective", gpt2(), DType::f16, false, Recompute::selective},
        Case{"llama bf16, full", llama(), DType::bf16, false, Recompute::full},
        Case{"experts bf16", with_experts(llama()), DType::bf16},
        Case{"extra head bf16", with_extra_head(llama()), DType::bf16}}) {
    expect_equal(c, gpu);
  }
  if (core::runtime(gpu).has_fp8_products()) expect_equal({"llama fp8", llama(), DType::bf16, true}, gpu);
}

TEST(StepGraphs, WhatComesFromTheHostInEveryPassStandsInTheirWay) {
  EXPECT_EQ(graph_obstacle(llama(), {}, 1), "");
  EXPECT_NE(graph_obstacle(llama(), {}, 2).find("ranks"), std::string::npos);
  spec::ModelSpec model = llama();
  model.rope.kind = spec::RopeKind::dynamic;
  EXPECT_NE(graph_obstacle(model, {}, 1).find("dynamic RoPE"), std::string::npos);
  model = gpt2();
  model.dropout.attention = 0.1f;
  EXPECT_NE(graph_obstacle(model, {}, 1).find("dropout"), std::string::npos);
  // Such a run trains all the same.
  EXPECT_EQ(train({"dropout", model}, {}, true, false).num_replays, 0);
}

}  // namespace
}  // namespace sinter::train
