// Parts of a model in one process: pipeline stages, and the hooks around blocks.
#include <gtest/gtest.h>

#include <map>

#include "base/rng.h"
#include "base/source_dir.h"
#include "core/host_batch.h"
#include "models/transformer.h"
#include "spec/hf_config.h"

namespace sinter::models {
namespace {

using autograd::Recompute;
using autograd::Tape;

constexpr int64_t kTokens = 48;
const char* const kFamilies[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"};

spec::ModelSpec golden_spec(const std::string& family) {
  spec::ModelSpec spec = spec::load_hf_config(base::source_dir() + "/tests/golden/models/" + family + "/config.json");
  spec.dropout = {0.1f, 0.2f, 0.1f};
  spec.mtp_heads = 1;
  return spec;
}

core::HostBatch random_batch() {
  base::CounterRng rng{5, 5};
  std::vector<int32_t> tokens;
  for (uint64_t i = 0; i < kTokens; ++i) tokens.push_back(static_cast<int32_t>(rng.bits(i) % 500));
  core::HostBatch host;
  host.add_sequence(std::span(tokens).subspan(0, 19));
  host.add_sequence(std::span(tokens).subspan(19));
  host.set_next_token_targets();
  return host;
}

// A pass over one batch: where its losses are left.
struct Pass {
  explicit Pass(const spec::ModelSpec& spec)
      : device(core::runtime({})), host(random_batch()), batch(core::upload(device.allocator(), host)) {
    auto make = [&](std::vector<float> values) {
      return core::make_tensor<float>(device.allocator(), {static_cast<int64_t>(values.size())}, values);
    };
    places.scale = make({1.0f / 45}), places.mtp_scale = make({0.3f / 45});
    places.losses = make(std::vector<float>(kTokens));
    places.mtp_losses = {make(std::vector<float>(kTokens))};
    std::vector<int32_t> ahead(kTokens, -1);
    for (size_t t = 0; t + 1 < ahead.size(); ++t) ahead[t] = host.targets[t + 1];
    places.mtp_targets = {core::make_tensor(device.allocator(), {kTokens}, ahead)};
    if (spec.moe.num_experts > 0) places.balance = {make({0.0f}), make({0.5f})};
  }
  Context context(Tape* tape) { return {kernels::kernels_for({}), device.stream(), device.allocator(), tape}; }

  core::DeviceRuntime& device;
  core::HostBatch host;
  core::RaggedBatch batch;
  LossPlaces places;
  DropoutKey dropout{.is_on = true, .seed = 3, .step = 4};
};

using Gradients = std::map<std::string, std::vector<float>>;
void add_gradients(const ParameterStore& store, Gradients& sums) {
  for (const auto& slot : store.slots()) {
    std::vector<float> gradient = store.gradient_of(slot);
    auto [sum, is_new] = sums.try_emplace(slot.info.name, gradient);
    for (size_t i = 0; !is_new && i < gradient.size(); ++i) sum->second[i] += gradient[i];
  }
}

struct Result {
  std::vector<float> losses, mtp_losses;
  Gradients gradients;
};

Result run_whole(const spec::ModelSpec& spec, Recompute mode) {
  ParameterStore store(spec, {.trains = true});
  store.initialize(11);
  Transformer transformer(spec, store);
  Pass pass(spec);
  Tape tape(mode);
  transformer.loss(pass.context(&tape), pass.batch, pass.dropout, pass.places);
  tape.backward();
  Result result{core::to_host_floats(pass.places.losses), core::to_host_floats(pass.places.mtp_losses[0]), {}};
  add_gradients(store, result.gradients);
  return result;
}

Result run_in_stages(const spec::ModelSpec& spec, int64_t pp, Recompute mode) {
  const spec::TensorLayout layout{.pp = pp};
  std::vector<std::unique_ptr<ParameterStore>> stores;
  std::vector<std::unique_ptr<Transformer>> stages;
  for (int64_t p = 0; p < pp; ++p) {
    stores.push_back(
        std::make_unique<ParameterStore>(spec::local_table(spec, layout, {0, 0, p}), StoreOptions{.trains = true}));
    stores.back()->initialize(11);
    stages.push_back(std::make_unique<Transformer>(
        spec, *stores.back(), TransformerPart{layout.layers_of(spec.num_layers, p), p == 0, p == pp - 1}));
  }
  Pass pass(spec);
  std::vector<Tape> tapes(static_cast<size_t>(pp), Tape(mode));
  std::vector<Variable> inputs(1), outputs;
  for (size_t p = 0; p + 1 < stages.size(); ++p) {
    outputs.push_back(
        stages[p]->stage(pass.context(&tapes[p]), pass.batch, pass.dropout, inputs[p], pass.places.balance));
    inputs.push_back(Tape::make_variable(outputs.back().value));
  }
  stages.back()->loss(pass.context(&tapes.back()), pass.batch, pass.dropout, pass.places, inputs.back());
  for (size_t p = stages.size(); p-- > 0;) {
    tapes[p].backward();
    if (p > 0) outputs[p - 1].slot->grad = inputs[p].slot->grad;
  }
  Result result{core::to_host_floats(pass.places.losses), core::to_host_floats(pass.places.mtp_losses[0]), {}};
  for (const auto& store : stores) add_gradients(*store, result.gradients);
  return result;
}

TEST(Stages, EqualTheWholeModelBitForBit) {
  for (const char* name : kFamilies) {
    const spec::ModelSpec spec = golden_spec(name);
    for (Recompute mode : {Recompute::none, Recompute::full}) {
      const Result whole = run_whole(spec, mode), staged = run_in_stages(spec, 2, mode);
      EXPECT_EQ(staged.losses, whole.losses) << name;
      EXPECT_EQ(staged.mtp_losses, whole.mtp_losses) << name;
      ASSERT_EQ(staged.gradients.size(), whole.gradients.size()) << name;
      for (const auto& [tensor, gradient] : whole.gradients) {
        const std::vector<float>& found = staged.gradients.at(tensor);
        if (!(spec.tied_head && tensor == "embedding.weight")) {
          EXPECT_EQ(found, gradient) << name << " " << tensor;
          continue;
        }
        // Two copies of the table, whose gradients are added here in another order.
        for (size_t i = 0; i < gradient.size(); ++i) ASSERT_NEAR(found[i], gradient[i], 1e-6) << name;
      }
    }
  }
}

TEST(Stages, HooksStandAroundEveryBlockInBothDirections) {
  const spec::ModelSpec spec = golden_spec("llama");
  ParameterStore store(spec, {.trains = true});
  store.initialize(11);
  Transformer transformer(spec, store);
  for (Recompute mode : {Recompute::none, Recompute::full}) {
    std::vector<std::string> calls;
    auto note = [&](const char* what) {
      return [&calls, what](int64_t layer) { calls.push_back(what + std::to_string(layer)); };
    };
    transformer.hooks = {note("f"), note("/f"), note("b"), note("/b")};
    Pass pass(spec);
    Tape tape(mode);
    transformer.loss(pass.context(&tape), pass.batch, pass.dropout, pass.places);
    tape.backward();
    const int64_t L = spec.num_layers;
    std::vector<std::string> expected;
    auto add = [&](const std::string& what, int64_t layer) { expected.push_back(what + std::to_string(layer)); };
    for (int64_t l = -1; l < L; ++l) add("f", l), add("/f", l);
    add("f", L), add("f", L + 1), add("/f", L + 1), add("/f", L);
    add("b", L), add("b", L + 1), add("/b", L + 1), add("/b", L);
    for (int64_t l = L - 1; l >= -1; --l) add("b", l), add("/b", l);
    EXPECT_EQ(calls, expected);
  }
}

TEST(ParameterStore, ABlockIsOneRangeAndItsGradientsToo) {
  for (DType gradients : {DType::f32, DType::bf16}) {
    const spec::ModelSpec spec = golden_spec("mixtral");
    ParameterStore store(spec, {.compute = DType::bf16, .trains = true, .gradients = gradients});
    int64_t end = 0;
    for (const auto& range : store.ranges()) {
      EXPECT_EQ(range.begin, end);
      end = range.end;
    }
    EXPECT_EQ(end, store.num_elements());
    for (const auto& slot : store.slots()) {
      const auto block = store.block_range(slot.info.layer);
      EXPECT_GE(slot.offset, block.begin);
      EXPECT_LE(slot.offset + slot.info.num_elements(), block.end);
      EXPECT_EQ(slot.parameter.grad.tensor().raw(), store.gradients_of(slot.offset, 1).raw()) << slot.info.name;
    }
    int64_t bytes = 0;
    for (const Tensor& t : store.gradients()) bytes += t.num_elements();
    EXPECT_EQ(bytes, store.num_elements());
  }
}

// What each rank of a tensor-parallel layout draws is what one rank would have there.
TEST(ParameterStore, LocalInitialValuesAreThoseOfTheWholeTensor) {
  const spec::ModelSpec spec = golden_spec("qwen3");
  ParameterStore whole(spec, {});
  whole.initialize(7);
  for (int64_t rank : {0, 1}) {
    ParameterStore local(spec::local_table(spec, {.tp = 2}, {rank, 0, 0}), {});
    local.initialize(7);
    std::vector<std::vector<float>> drawn;
    for (const auto& slot : local.slots()) drawn.push_back(local.values_of(slot));
    for (size_t i = 0; i < local.slots().size(); ++i) {
      local.set_global(local.slots()[i], whole.values_of(whole.slots()[i]));
      EXPECT_EQ(local.values_of(local.slots()[i]), drawn[i]) << local.slots()[i].info.name;
    }
  }
}

}  // namespace
}  // namespace sinter::models
