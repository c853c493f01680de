// Whole models with their linear layers in fp8, by the reference loops on the CPU.
#include "ops/fp8.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/source_dir.h"
#include "core/arena.h"
#include "core/host_batch.h"
#include "io/tensor_folder.h"
#include "models/transformer.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::models {
namespace {

using autograd::Recompute;
using autograd::Tape;

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/models/" + name; }

// A golden model in bf16 with a batch, its linear layers in fp8 when asked.
class Model {
 public:
  Model(const std::string& name, bool is_fp8, core::Device device = {}, Recompute mode = Recompute::none)
      : spec(spec::load_hf_config(golden(name) + "/config.json")),
        store(spec, {.device = device, .compute = DType::bf16, .trains = true}),
        transformer(spec, store),
        device_(core::runtime(device)),
        mode_(mode) {
    if (device.kind == core::DeviceKind::cpu) load_weights(store, spec, io::TensorFolder(golden(name)));
    std::vector<const Parameter*> weights;
    for (const auto& slot : store.slots()) {
      if (slot.info.role == spec::ParameterRole::matrix) weights.push_back(&slot.parameter);
    }
    if (is_fp8) fp8 = std::make_unique<ops::Fp8Layers>(device, weights);
    core::HostBatch host;
    for (int32_t s = 0; s < 3; ++s) {
      std::vector<int32_t> tokens;
      for (int32_t t = 0; t < 16; ++t) tokens.push_back((t * 37 + s * 101 + 5) % 512);
      host.add_sequence(tokens);
    }
    host.set_next_token_targets();
    batch_ = core::upload(device_.allocator(), host);
    places_.scale = core::make_tensor<float>(device_.allocator(), {1}, {1.0f / 45});
    places_.losses = Tensor(device_.allocator(), {48}, DType::f32);
  }

  // The mean loss; gradients stay in the store.
  double run_step(core::Allocator& memory, const kernels::KernelTable& kernels = *kernels::reference_table()) {
    store.begin_step();
    if (fp8) fp8->begin_step(kernels, device_.stream());
    Tape tape(mode_);
    transformer.loss({kernels, device_.stream(), memory, &tape, fp8.get()}, batch_, {}, places_);
    tape.backward();
    double sum = 0;
    for (float loss : core::to_host_floats(places_.losses)) sum += loss / 45;
    return sum;
  }
  double run_step() { return run_step(device_.allocator()); }

  spec::ModelSpec spec;
  ParameterStore store;
  Transformer transformer;
  std::unique_ptr<ops::Fp8Layers> fp8;

 private:
  core::DeviceRuntime& device_;
  Recompute mode_;
  core::RaggedBatch batch_;
  LossPlaces places_;
};

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * b[i];
    aa += static_cast<double>(a[i]) * a[i];
    bb += static_cast<double>(b[i]) * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

// llama takes the fused gated MLP, gpt2 the plain one with biases.
TEST(Fp8Transformer, LossAndGradientsAreCloseToBf16) {
  for (const char* name : {"llama", "gpt2"}) {
    Model plain(name, false), fp8(name, true);
    EXPECT_EQ(fp8.fp8->num_layers(), 12u) << name;
    const double expected = plain.run_step(), actual = fp8.run_step();
    EXPECT_NE(actual, expected) << name << ": nothing ran in fp8";
    EXPECT_NEAR(actual / expected, 1, 0.01) << name;
    for (size_t i = 0; i < plain.store.slots().size(); ++i) {
      const double angle =
          cosine(plain.store.gradient_of(plain.store.slots()[i]), fp8.store.gradient_of(fp8.store.slots()[i]));
      EXPECT_GT(angle, 0.97) << name << " " << plain.store.slots()[i].info.name;
    }
  }
}

// The scales of a step that saw the same numbers are those the first step found for itself.
TEST(Fp8Transformer, DelayedScalesOfTheSameNumbersGiveTheSameBits) {
  Model model("llama", true);
  const double first = model.run_step();
  const std::vector<float> expected = core::to_host_floats(model.store.grad());
  EXPECT_EQ(model.run_step(), first);
  EXPECT_EQ(core::to_host_floats(model.store.grad()), expected);
}

TEST(Fp8Transformer, ScalesOfACheckpointGoOnBitForBit) {
  Model unbroken("llama", true), resumed("llama", true);
  auto shrink = [](Model& model) {  // other numbers in the second step
    for (ParameterStore::Slot& slot : model.store.slots()) {
      std::vector<float> values = model.store.values_of(slot);
      for (float& v : values) v *= 0.4f;
      model.store.set(slot, values);
    }
  };
  unbroken.run_step();
  const std::vector<float> state = core::to_host_floats(unbroken.fp8->scalings());
  std::memcpy(resumed.fp8->scalings().raw(), state.data(), resumed.fp8->scalings().bytes());
  resumed.fp8->resume();
  shrink(unbroken);
  shrink(resumed);
  EXPECT_EQ(unbroken.run_step(), resumed.run_step());
  EXPECT_EQ(core::to_host_floats(unbroken.store.grad()), core::to_host_floats(resumed.store.grad()));
  EXPECT_EQ(core::to_host_floats(unbroken.fp8->scalings()), core::to_host_floats(resumed.fp8->scalings()));
}

TEST(Fp8Transformer, ACheckpointFromBeforeTheFirstStepStartsAnew) {
  Model fresh("llama", true), resumed("llama", true);
  resumed.fp8->resume();
  EXPECT_EQ(fresh.run_step(), resumed.run_step());
  EXPECT_EQ(core::to_host_floats(fresh.store.grad()), core::to_host_floats(resumed.store.grad()));
}

TEST(Fp8Transformer, RecomputeModesGiveTheSameBits) {
  for (const char* name : {"llama", "gpt2"}) {
    Model none(name, true);
    const double loss = none.run_step();
    for (Recompute mode : {Recompute::selective, Recompute::full}) {
      Model other(name, true, {}, mode);
      EXPECT_EQ(other.run_step(), loss) << name << " " << spec::recompute_name(mode);
      EXPECT_EQ(core::to_host_floats(other.store.grad()), core::to_host_floats(none.store.grad())) << name;
    }
  }
}

// The first step reads twice and later ones once, in the same memory.
TEST(Fp8Transformer, StepsStayInTheMemoryPlannedOnShapes) {
  for (Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    core::RecordingAllocator recorder;
    Model shapes("llama", true, {core::DeviceKind::shapes, 0}, mode);
    shapes.run_step(recorder, *kernels::shapes_table());
    core::PlannedArena arena(core::runtime({}).allocator(), core::plan_memory(recorder.trace()));
    Model model("llama", true, {}, mode), free("llama", true, {}, mode);
    for (int step = 0; step < 2; ++step) {
      arena.begin_step();
      EXPECT_EQ(model.run_step(arena), free.run_step());
    }
    EXPECT_EQ(core::to_host_floats(model.store.grad()), core::to_host_floats(free.store.grad()));
  }
}

TEST(Fp8Transformer, RowsThatDoNotFitRunInBf16) {
  Model model("llama", true);
  const Parameter& weight = model.store.get("layers.0.attention.qkv.weight");
  EXPECT_TRUE(model.fp8->find(weight, 48));
  EXPECT_FALSE(model.fp8->find(weight, 47));
  EXPECT_FALSE(model.fp8->find(model.store.get("embedding.weight"), 48));
}

}  // namespace
}  // namespace sinter::models
