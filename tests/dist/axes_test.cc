// Tensor, sequence and pipeline parallelism on several ranks against one; launched by tests/mpirun.sh.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>

#include "base/rng.h"
#include "comm/communicator.h"
#include "core/arena.h"
#include "core/host_batch.h"
#include "models/transformer.h"
#include "ops/loss.h"
#include "parallel/context.h"
#include "parallel/expert.h"
#include "parallel/tensor.h"
#include "train/pipeline.h"

namespace sinter {
namespace {

using autograd::Recompute;
using autograd::Tape;
using core::DType;
using core::Tensor;
using models::ParameterStore;
using models::Transformer;

constexpr int64_t kTokens = 24;

// Sizes that two and three ranks can cut.
spec::ModelSpec make_spec(spec::Family family, int64_t kv_heads, int64_t num_layers) {
  spec::ModelSpec m;
  m.family = family;
  m.vocab_size = 101, m.hidden = 20, m.num_layers = num_layers, m.num_heads = 6, m.num_kv_heads = kv_heads;
  m.head_dim = 4, m.ffn = 24, m.max_positions = 64, m.mtp_heads = 1;
  m.rope.kind = spec::RopeKind::standard;
  m.dropout = {0.1f, 0.2f, 0.1f};
  if (family == spec::Family::gpt2) {
    m.rope.kind = spec::RopeKind::none;
    m.norm = spec::NormKind::layer, m.gated_mlp = false, m.activation = spec::Activation::gelu_tanh;
    m.learned_positions = m.tied_head = m.qkv_bias = m.out_bias = m.mlp_bias = true;
  }
  m.qk_norm = family == spec::Family::qwen3;
  if (family == spec::Family::mixtral) {
    m.moe = {.num_experts = 6, .experts_per_token = 2, .ffn = 12, .balance_loss = 0.1f};
    m.sparse_layers.assign(static_cast<size_t>(num_layers), 1);
  }
  return m;
}

// A batch on the device and where its losses go.
struct Pass {
  Pass(const spec::ModelSpec& spec, uint64_t seed) {
    base::CounterRng rng{5, seed};
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(rng.bits(i) % 101));
    host.add_sequence(std::span(tokens).subspan(0, 9));
    host.add_sequence(std::span(tokens).subspan(9));
    host.set_next_token_targets();
    batch = core::upload(device.allocator(), host);
    auto make = [&](std::vector<float> values) {
      return core::make_tensor<float>(device.allocator(), {static_cast<int64_t>(values.size())}, values);
    };
    places.scale = make({1.0f / 22}), places.mtp_scale = make({0.3f / 22});
    places.losses = make(std::vector<float>(kTokens));
    std::vector<int32_t> ahead(kTokens, -1);
    for (size_t t = 0; t + 1 < ahead.size(); ++t) ahead[t] = host.targets[t + 1];
    places.mtp_targets = {core::make_tensor(device.allocator(), {kTokens}, ahead)};
    places.mtp_losses = {make(std::vector<float>(kTokens))};
    if (spec.moe.num_experts > 0) places.balance = {make({0.0f}), make({0.5f})};
    dropout = {.is_on = true, .seed = 3, .step = 4, .first_token = seed * static_cast<uint64_t>(kTokens)};
  }
  ops::Context context(Tape* tape) { return {kernels::kernels_for({}), device.stream(), device.allocator(), tape}; }

  core::DeviceRuntime& device = core::runtime({});
  core::HostBatch host;
  core::RaggedBatch batch;
  models::LossPlaces places;
  models::DropoutKey dropout;
};

// One rank's answer: losses of every micro-batch and the sums of gradients.
struct Answer {
  std::vector<std::vector<float>> losses;
  std::map<std::string, std::vector<float>> gradients;
  double balance = 0;
};
Answer run_whole(const spec::ModelSpec& spec, int64_t micro_batches, Recompute mode,
                 const std::function<void(Transformer&)>& prepare = {}) {
  ParameterStore store(spec, {.trains = true});
  store.initialize(11);
  Transformer transformer(spec, store);
  if (prepare) prepare(transformer);
  Answer answer;
  for (int64_t i = 0; i < micro_batches; ++i) {
    Pass pass(spec, static_cast<uint64_t>(i));
    Tape tape(mode);
    transformer.loss(pass.context(&tape), pass.batch, pass.dropout, pass.places);
    tape.backward();
    answer.losses.push_back(core::to_host_floats(pass.places.losses));
    if (pass.places.balance.loss) answer.balance += pass.places.balance.loss.data<float>()[0];
  }
  for (const auto& slot : store.slots()) answer.gradients[slot.info.name] = store.gradient_of(slot);
  return answer;
}

void expect_near(const std::vector<float>& found, const std::vector<float>& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double largest = 1e-6;
  for (float x : expected) largest = std::max(largest, std::abs(static_cast<double>(x)));
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 3e-5 * largest) << what << " " << i;
}

// The gradients of a rank's tensors are those of its boxes of the whole ones.
void expect_gradients(const ParameterStore& store, const Answer& answer, const std::string& what) {
  for (const auto& slot : store.slots()) {
    const std::vector<float> own = store.gradient_of(slot), &whole = answer.gradients.at(slot.info.name);
    std::vector<float> found, expected;
    for (const spec::Box& box : slot.boxes) {
      spec::visit_runs(box, slot.global_shape, slot.info.shape, [&](int64_t global, int64_t local, int64_t count) {
        found.insert(found.end(), own.begin() + local, own.begin() + local + count);
        expected.insert(expected.end(), whole.begin() + global, whole.begin() + global + count);
      });
    }
    expect_near(found, expected, what + " " + slot.info.name);
  }
}

TEST(TensorParallel, EqualsOneRankInEveryFamilyWithAndWithoutSequenceParallelism) {
  comm::Communicator& world = comm::world();
  struct Case {
    spec::Family family;
    int64_t kv_heads;
  };
  // One KV head is shared by all ranks.
  for (const Case& c : {Case{spec::Family::llama, 6}, Case{spec::Family::qwen3, 1}, Case{spec::Family::gpt2, 6},
                        Case{spec::Family::mixtral, 6}}) {
    const spec::ModelSpec spec = make_spec(c.family, c.kv_heads, 2);
    for (bool splits_rows : {false, true}) {
      for (Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
        const std::string what =
            std::string(spec::family_name(c.family)) + (splits_rows ? " sp " : " ") + spec::recompute_name(mode);
        const Answer answer = run_whole(spec, 1, mode);
        parallel::TensorAxis axis(world, spec, splits_rows);
        ParameterStore store(spec::local_table(spec, {.tp = world.size()}, {.tp = world.rank()}), {.trains = true});
        store.initialize(11);
        Transformer transformer(spec, store, {.tensor = &axis});
        Pass pass(spec, 0);
        Tape tape(mode);
        transformer.loss(pass.context(&tape), pass.batch, pass.dropout, pass.places);
        tape.backward();
        for (auto& slot : store.slots()) axis.sum_gradient(pass.context(nullptr), slot.info, slot.parameter);
        expect_near(core::to_host_floats(pass.places.losses), answer.losses[0], what + " losses");
        expect_gradients(store, answer, what);
      }
    }
  }
}

// Most bytes that the head and its loss hold at once for 1,024 rows, without data.
size_t head_peak(const spec::ModelSpec& spec, const parallel::TensorAxis* axis) {
  const core::Device shapes{core::DeviceKind::shapes, 0};
  core::DeviceRuntime& device = core::runtime(shapes);
  const int64_t tp = axis ? axis->size() : 1, rank = axis ? axis->rank() : 0;
  ParameterStore store(spec::local_table(spec, {.tp = tp}, {.tp = rank}), {.device = shapes, .trains = true});
  core::RecordingAllocator recorder;
  Tape tape(Recompute::none);
  const ops::Context context{kernels::kernels_for(shapes), device.stream(), recorder, &tape};
  constexpr int64_t kRows = 1024;
  const Tensor targets(device.allocator(), {kRows}, DType::i32), losses(device.allocator(), {kRows}, DType::f32),
      scale(device.allocator(), {1}, DType::f32);
  const autograd::Variable x = Tape::make_variable(Tensor(device.allocator(), {kRows, spec.hidden}, DType::f32));
  if (axis) {
    axis->linear_cross_entropy(context, x, store.get("head.weight"), targets, scale, losses);
  } else {
    ops::linear_cross_entropy(context, x, store.get("head.weight"), targets, scale, losses);
  }
  return recorder.trace().peak_bytes;
}

TEST(TensorParallel, TheLossOfALargeVocabularyNeedsOneOverTheRanks) {
  spec::ModelSpec spec = make_spec(spec::Family::llama, 6, 1);
  spec.vocab_size = 128256;
  parallel::TensorAxis axis(comm::world(), spec, false);
  const double share = static_cast<double>(head_peak(spec, &axis)) / static_cast<double>(head_peak(spec, nullptr));
  EXPECT_LT(share, 1.02 / static_cast<double>(axis.size()));
  if (axis.rank() == 0) printf("peak memory of the head with tp %d: %.3f of one rank's\n", int(axis.size()), share);
}

TEST(PipelineParallel, EveryScheduleEqualsOneRank) {
  comm::Communicator& world = comm::world();
  const int64_t pp = world.size(), micro_batches = 2 * pp;
  for (spec::Family family : {spec::Family::llama, spec::Family::gpt2, spec::Family::mixtral}) {
    for (spec::PipelineKind kind : {spec::PipelineKind::gpipe, spec::PipelineKind::one_f_one_b,
                                    spec::PipelineKind::interleaved, spec::PipelineKind::zero_bubble}) {
      for (Recompute mode : {Recompute::none, Recompute::full}) {
        const std::string what = std::string(spec::family_name(family)) + " " + spec::pipeline_name(kind);
        const int64_t chunks = kind == spec::PipelineKind::interleaved ? 2 : 1;
        const spec::ModelSpec spec = make_spec(family, 6, 2 * pp + 1);
        const spec::TensorLayout layout{.pp = pp, .interleave = chunks};
        const Answer answer = run_whole(spec, micro_batches, mode);
        ParameterStore store(spec::local_table(spec, layout, {.pp = world.rank()}), {.trains = true});
        store.initialize(11);
        std::vector<std::unique_ptr<Transformer>> parts;
        std::vector<Transformer*> pointers;
        for (int64_t c = 0; c < chunks; ++c) {
          const int64_t stage = c * pp + world.rank();
          parts.push_back(std::make_unique<Transformer>(
              spec, store,
              models::TransformerPart{layout.layers_of(spec.num_layers, stage), stage == 0, stage == pp * chunks - 1}));
          pointers.push_back(parts.back().get());
        }
        std::vector<std::unique_ptr<Pass>> passes;
        std::vector<train::PipelineMicroBatch> batches;
        for (int64_t i = 0; i < micro_batches; ++i) {
          passes.push_back(std::make_unique<Pass>(spec, static_cast<uint64_t>(i)));
          batches.push_back({passes.back()->batch, passes.back()->dropout, passes.back()->places});
        }
        const spec::PipelineShape shape{kind, pp, chunks, micro_batches};
        train::Pipeline pipeline(world, shape, pointers);
        pipeline.run(passes[0]->context(nullptr), mode, batches);
        pipeline.sum_tied_gradients(passes[0]->context(nullptr));
        EXPECT_EQ(pipeline.most_in_flight(), spec::max_in_flight(shape, world.rank())) << what;
        for (int64_t i = 0; world.rank() == pp - 1 && i < micro_batches; ++i) {
          EXPECT_EQ(core::to_host_floats(passes[static_cast<size_t>(i)]->places.losses),
                    answer.losses[static_cast<size_t>(i)])
              << what;
        }
        expect_gradients(store, answer, what);
      }
    }
  }
}

// A rank's rows of a pass.
struct ContextPass {
  ContextPass(const spec::ModelSpec& spec, const Pass& whole, const comm::Communicator& group)
      : rows(parallel::context_rows(whole.host, kTokens, parallel::windows_of(spec), group.size(), group.rank())),
        view(whole.device.allocator(), kTokens / group.size(), parallel::windows_of(spec), group.size()),
        batch(core::upload(whole.device.allocator(), parallel::take_rows(whole.host, rows.rows))),
        places(whole.places) {
    batch.context = &view.load(rows, whole.dropout.first_token);
    auto& allocator = whole.device.allocator();
    places.losses = Tensor(allocator, {batch.num_tokens}, DType::f32);
    places.mtp_losses = {Tensor(allocator, {batch.num_tokens}, DType::f32)};
    std::vector<int32_t> ahead;
    for (int32_t row : rows.rows) ahead.push_back(whole.places.mtp_targets[0].data<int32_t>()[row]);
    places.mtp_targets = {core::make_tensor(allocator, {batch.num_tokens}, ahead)};
  }
  parallel::ContextRows rows;
  parallel::DeviceContextView view;
  core::RaggedBatch batch;
  models::LossPlaces places;
};

TEST(ContextParallel, RingAndGatherEqualOneRankWithDocumentsAndWindows) {
  comm::Communicator& world = comm::world();
  for (spec::Family family : {spec::Family::llama, spec::Family::mistral, spec::Family::gpt2, spec::Family::mixtral}) {
    spec::ModelSpec spec = make_spec(family, family == spec::Family::llama ? 2 : 6, 2);
    if (family == spec::Family::mistral) spec.window = {5, 0};
    for (Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
      const Answer answer = run_whole(spec, 2, mode);
      std::vector<std::vector<float>> by_kind;
      for (spec::ContextKind kind : {spec::ContextKind::ring, spec::ContextKind::gather}) {
        const std::string what = std::string(spec::family_name(family)) + " " + spec::recompute_name(mode);
        const parallel::ContextAxis axis(world, kind);
        ParameterStore store(spec, {.trains = true});
        store.initialize(11);
        Transformer transformer(spec, store, {.context = &axis});
        double balance = 0;
        for (uint64_t i = 0; i < 2; ++i) {
          Pass whole(spec, i);
          ContextPass pass(spec, whole, world);
          Tape tape(mode);
          transformer.loss(whole.context(&tape), pass.batch, whole.dropout, pass.places);
          tape.backward();
          const std::vector<float> own = core::to_host_floats(pass.places.losses);
          std::vector<float> expected;
          for (int32_t row : pass.rows.rows) expected.push_back(answer.losses[i][static_cast<size_t>(row)]);
          expect_near(own, expected, what + " losses");
          if (whole.places.balance.loss) balance += whole.places.balance.loss.data<float>()[0];
        }
        for (const Tensor& gradients : store.gradients()) world.all_reduce(gradients);
        expect_gradients(store, answer, what);
        by_kind.push_back(core::to_host_floats(store.grad()));
        if (spec.moe.num_experts > 0) {
          EXPECT_NEAR(world.sum(balance), answer.balance, 1e-5 * answer.balance) << what;
        }
      }
      EXPECT_EQ(by_kind[0], by_kind[1]) << "ring and gather take the keys in the same order";
    }
  }
}

// Every rank has its own tokens; each expert's gradient gathers where the expert is.
TEST(ExpertParallel, EqualsOneRankAlsoWhenOneExpertTakesAllTokens) {
  comm::Communicator& world = comm::world();
  const int64_t P = world.size();
  const spec::ModelSpec spec = make_spec(spec::Family::mixtral, 6, 2);
  core::Allocator& allocator = core::runtime({}).allocator();
  std::map<Recompute, size_t> even_bytes;
  for (bool is_lopsided : {false, true}) {
    auto favour = [&](Transformer& transformer) {
      if (!is_lopsided) return;
      transformer.on_router_logits = [&](int64_t, const Tensor& logits) {
        for (int64_t t = 0; t < logits.rows(); ++t) {
          logits.data<float>()[t * 6 + 1] += 40;
          logits.data<float>()[t * 6] += 20;
        }
      };
    };
    for (Recompute mode : {Recompute::none, Recompute::full}) {
      const std::string what = is_lopsided ? "lopsided" : "even";
      const Answer answer = run_whole(spec, P, mode, favour);
      const parallel::ExpertAxis axis(world, 6, 1.0);
      const spec::TensorPlace place{.ep = world.rank()};
      ParameterStore store(spec::local_table(spec, {.ep = P}, place), {.trains = true});
      store.initialize(11);
      Transformer transformer(spec, store, {.expert = &axis});
      favour(transformer);
      Pass pass(spec, static_cast<uint64_t>(world.rank()));
      Tape tape(mode);
      const size_t before = allocator.stats().current_bytes;
      allocator.reset_peak();
      transformer.loss(pass.context(&tape), pass.batch, pass.dropout, pass.places);
      tape.backward();
      const size_t taken = allocator.stats().peak_bytes - before;
      if (!is_lopsided) even_bytes[mode] = taken;
      EXPECT_LE(taken, even_bytes[mode]) << "further rounds take further memory";
      for (auto& slot : store.slots()) {
        if (slot.info.expert_axis < 0) world.all_reduce(slot.parameter.grad.tensor());
      }
      expect_near(core::to_host_floats(pass.places.losses), answer.losses[static_cast<size_t>(world.rank())], what);
      expect_gradients(store, answer, what);
      if (is_lopsided) {
        EXPECT_GT(axis.most_rounds(), 1) << "the further rounds were not tried";
      }
    }
  }
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sinter::comm::world();
  return RUN_ALL_TESTS();
}
