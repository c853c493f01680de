#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/source_dir.h"
#include "base/threads.h"
#include "core/arena.h"
#include "core/host_batch.h"
#include "io/safetensors.h"
#include "io/tensor_folder.h"
#include "models/transformer.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::models {
namespace {

using autograd::Recompute;
using autograd::Tape;

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/models/" + name; }

// A golden model with everything a spec can turn on: dropout, balance loss, extra heads.
struct Model {
  explicit Model(const std::string& name, bool has_extras) : spec(spec::load_hf_config(golden(name) + "/config.json")) {
    if (has_extras) {
      spec.dropout = {0.1f, 0.2f, 0.1f};
      spec.mtp_heads = 2;
    }
    store = std::make_unique<ParameterStore>(spec, StoreOptions{.trains = true});
    store->initialize(11);
    transformer = std::make_unique<Transformer>(spec, *store);
    base::CounterRng rng{5, 5};
    std::vector<int32_t> tokens;
    for (uint64_t i = 0; i < 48; ++i) tokens.push_back(static_cast<int32_t>(rng.bits(i) % 500));
    host.add_sequence(std::span(tokens).subspan(0, 19));
    host.add_sequence(std::span(tokens).subspan(19, 1));
    host.add_sequence(std::span(tokens).subspan(20));
    host.set_next_token_targets();
  }

  // The weighted sum of all losses; gradients stay in the store.
  double loss(Recompute mode, bool wants_gradients = true) {
    core::DeviceRuntime& device = core::runtime({});
    store->begin_step();
    core::RaggedBatch batch = core::upload(device.allocator(), host);
    LossPlaces places;
    places.scale = core::make_tensor<float>(device.allocator(), {1}, {1.0f / 45});
    places.mtp_scale = core::make_tensor<float>(device.allocator(), {1}, {0.3f / 45});
    places.losses = Tensor(device.allocator(), {48}, DType::f32);
    for (int64_t j = 0; j < spec.mtp_heads; ++j) {
      std::vector<int32_t> ahead(48, -1);
      for (size_t t = 0; t + static_cast<size_t>(j) + 1 < 48; ++t)
        ahead[t] = host.targets[t + static_cast<size_t>(j) + 1];
      places.mtp_targets.push_back(core::make_tensor(device.allocator(), {48}, ahead));
      places.mtp_losses.emplace_back(device.allocator(), core::Shape{48}, DType::f32);
    }
    if (spec.moe.num_experts > 0) {
      places.balance.loss = core::make_tensor<float>(device.allocator(), {1}, {0.0f});
      places.balance.scale = core::make_tensor<float>(device.allocator(), {1}, {0.5f});
    }
    Tape tape(mode);
    Context context{kernels::kernels_for({}), device.stream(), device.allocator(), wants_gradients ? &tape : nullptr};
    transformer->loss(context, batch, {.is_on = spec.mtp_heads > 0, .seed = 3, .step = 4, .first_token = 0}, places);
    tape.backward();
    double total = 0;
    for (float l : core::to_host_floats(places.losses)) total += l / 45;
    for (const Tensor& losses : places.mtp_losses) {
      for (float l : core::to_host_floats(losses)) total += 0.3 * l / 45;
    }
    if (places.balance.loss) total += 0.5 * core::to_host_floats(places.balance.loss)[0];
    return total;
  }

  spec::ModelSpec spec;
  std::unique_ptr<ParameterStore> store;
  std::unique_ptr<Transformer> transformer;
  core::HostBatch host;
};

const char* const kFamilies[] = {"gpt2", "llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe"};

TEST(Transformer, RecomputeModesGiveTheSameBits) {
  for (const char* name : kFamilies) {
    Model model(name, true);
    double none = model.loss(Recompute::none);
    std::vector<float> expected = core::to_host_floats(model.store->grad());
    for (Recompute mode : {Recompute::selective, Recompute::full}) {
      EXPECT_EQ(model.loss(mode), none) << name;
      EXPECT_EQ(core::to_host_floats(model.store->grad()), expected) << name << " " << spec::recompute_name(mode);
    }
  }
}

TEST(Transformer, ThreadCountsGiveTheSameBits) {
  const int before = base::num_threads();
  for (const char* name : {"gpt2", "qwen3_moe"}) {
    Model model(name, true);
    base::set_num_threads(1);
    double one = model.loss(Recompute::none);
    std::vector<float> expected = core::to_host_floats(model.store->grad());
    for (int threads : {2, 3}) {
      base::set_num_threads(threads);
      EXPECT_EQ(model.loss(Recompute::none), one);
      EXPECT_EQ(core::to_host_floats(model.store->grad()), expected) << name << " " << threads;
    }
  }
  base::set_num_threads(before);
}

// Dropout, extra heads and the balance loss have no golden answers: their gradients are held against differences of the
// loss along random directions of every tensor.
TEST(ParameterStore, SquaresThatKernelsLeftMakeTheNormOfAllGradients) {
  const kernels::KernelTable& kernels = kernels::kernels_for({});
  core::DeviceRuntime& device = core::runtime({});
  const int before = base::num_threads();
  for (const char* name : kFamilies) {
    for (bool has_extras : {false, true}) {  // extra heads add to the gradient of the one head
      Model model(name, has_extras);
      std::vector<float> found;
      for (int threads : {1, 2, 3}) {
        base::set_num_threads(threads);
        model.loss(Recompute::none);
        Tensor total = core::make_tensor<float>(device.allocator(), {1}, {7.0f});
        model.store->sum_gradient_squares(kernels, device.stream(), total);
        found.push_back(core::to_host_floats(total)[0]);
        EXPECT_EQ(found.back(), found.front()) << name << ", " << threads << " threads";
      }
      double expected = 0;
      int64_t left = 0;
      for (float x : core::to_host_floats(model.store->grad())) expected += static_cast<double>(x) * x;
      for (const auto& slot : model.store->slots())
        left += slot.parameter.grad.has_squares() ? slot.info.num_elements() : 0;
      EXPECT_NEAR(found[0], expected, 1e-6 * expected) << name;
      const bool has_experts = model.spec.moe.num_experts > 0;  // their products leave none
      EXPECT_GT(left, has_experts ? 0 : model.store->num_elements() * 9 / 10) << name;
      model.store->forget_squares();
      Tensor total = core::make_tensor<float>(device.allocator(), {1}, {7.0f});
      model.store->sum_gradient_squares(kernels, device.stream(), total);
      EXPECT_NEAR(core::to_host_floats(total)[0], expected, 1e-6 * expected) << name;
    }
  }
  base::set_num_threads(before);
}

TEST(Transformer, GradientsOfTheExtrasMatchFiniteDifferences) {
  for (const char* name : {"gpt2", "llama", "qwen3", "mixtral"}) {
    Model model(name, true);
    for (ParameterStore::Slot& slot : model.store->slots()) {  // wider weights: routes and masks stay put, slopes show
      std::vector<float> values = model.store->values_of(slot);
      for (float& v : values) v *= 3.0f;
      model.store->set(slot, values);
    }
    model.loss(Recompute::none);
    std::vector<std::vector<float>> gradients;
    for (const ParameterStore::Slot& slot : model.store->slots()) gradients.push_back(model.store->gradient_of(slot));
    size_t index = 0;
    for (ParameterStore::Slot& slot : model.store->slots()) {
      const std::vector<float>& gradient = gradients[index++];
      if (slot.info.role == spec::ParameterRole::router || index % 3 != 0) continue;
      std::vector<float> values = model.store->values_of(slot), moved = values;
      base::CounterRng rng{index, 77};
      double expected = 0, step = 2e-3;
      std::vector<float> direction(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        direction[i] = rng.normal(i) / std::sqrt(static_cast<float>(values.size()));
        expected += static_cast<double>(gradient[i]) * direction[i];
      }
      auto at = [&](double factor) {
        for (size_t i = 0; i < values.size(); ++i) moved[i] = values[i] + static_cast<float>(factor * direction[i]);
        model.store->set(slot, moved);
        return model.loss(Recompute::none);
      };
      double slope = (at(step) - at(-step)) / (2 * step);
      model.store->set(slot, values);
      EXPECT_NEAR(slope, expected, 2e-3 + 0.02 * std::abs(expected)) << name << " " << slot.info.name;
    }
  }
}

TEST(Transformer, AScaleByLayerIsThatOfQueriesDividedByTheLayersNumber) {
  Model scaled("gpt2", false), divided("gpt2", false);
  scaled.spec.scale_by_layer = true;
  scaled.transformer = std::make_unique<Transformer>(scaled.spec, *scaled.store);
  for (Model* model : {&scaled, &divided}) {  // wide weights, so that attention is not nearly even
    for (auto& slot : model->store->slots()) {
      std::vector<float> values = model->store->values_of(slot);
      for (float& v : values) v *= 6.0f;
      model->store->set(slot, values);
    }
  }
  const double before = divided.loss(Recompute::none, false);
  for (int64_t l = 0; l < divided.spec.num_layers; ++l) {
    for (const char* part : {"weight", "bias"}) {
      const std::string name = "layers." + std::to_string(l) + ".attention.qkv." + part;
      for (auto& slot : divided.store->slots()) {
        if (slot.info.name != name) continue;
        std::vector<float> values = divided.store->values_of(slot);
        for (size_t i = 0; i < values.size() / 3; ++i) values[i] /= static_cast<float>(l + 1);  // queries come first
        divided.store->set(slot, values);
      }
    }
  }
  const double after = divided.loss(Recompute::none, false);
  EXPECT_GT(std::abs(after - before), 1e-3);
  EXPECT_NEAR(scaled.loss(Recompute::none, false), after, 1e-5);
}

TEST(Transformer, EveryDropoutTakesPart) {
  // Without the tensors whose name ends so: what is dropped there cannot be seen.
  auto loss = [](spec::DropoutSpec dropout, const std::string& without = "none", const char* name = "llama") {
    Model model(name, true);
    model.spec.dropout = dropout;
    model.transformer = std::make_unique<Transformer>(model.spec, *model.store);
    for (auto& slot : model.store->slots()) {
      if (!slot.info.name.ends_with(without)) continue;
      model.store->set(slot, std::vector<float>(static_cast<size_t>(slot.info.num_elements())));
    }
    return model.loss(Recompute::none, false);
  };
  EXPECT_NE(loss({.embedding = 0.2f}), loss({}));
  EXPECT_NE(loss({.attention = 0.2f}), loss({}));
  for (const char* sublayer : {"mlp.down.weight", "attention.out.weight"}) {  // each is dropped without the other too
    EXPECT_NE(loss({.residual = 0.2f}, sublayer), loss({}, sublayer)) << "without " << sublayer;
  }
  EXPECT_NE(loss({.residual = 0.2f}, "attention.out.weight", "mixtral"), loss({}, "attention.out.weight", "mixtral"));
}

TEST(Transformer, TheTrunkThatExtraHeadsReadIsTheStreamBeforeTheFinalNorm) {
  Model model("llama", false);
  core::DeviceRuntime& device = core::runtime({});
  core::RaggedBatch batch = core::upload(device.allocator(), model.host);
  Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  Variable trunk;
  const std::vector<float> hidden = core::to_host_floats(model.transformer->forward(context, batch, {}, &trunk).value);
  const std::vector<float> stream = core::to_host_floats(trunk.value);
  const auto C = static_cast<size_t>(model.spec.hidden);
  ASSERT_EQ(stream.size(), 48 * C);
  for (size_t t = 0; t < 48; ++t) {
    double squares = 0;
    for (size_t c = 0; c < C; ++c)
      squares += static_cast<double>(stream[t * C + c]) * static_cast<double>(stream[t * C + c]);
    const double rstd = 1 / std::sqrt(squares / static_cast<double>(C) + static_cast<double>(model.spec.norm_eps));
    // Initial norm weights are 1.
    for (size_t c = 0; c < C; ++c) ASSERT_NEAR(hidden[t * C + c], rstd * stream[t * C + c], 1e-5) << t << " " << c;
  }
}

TEST(MemoryPlan, AStepReplaysItsPlanAndRecomputeSavesMemory) {
  Model model("llama", false);
  auto run = [&](core::Device device, core::Allocator& memory, Transformer& transformer, Recompute mode) {
    core::RaggedBatch batch = core::upload(core::runtime(device).allocator(), model.host);
    LossPlaces places;
    places.scale = core::make_tensor<float>(core::runtime(device).allocator(), {1}, {1.0f});
    places.losses = Tensor(core::runtime(device).allocator(), {48}, DType::f32);
    Tape tape(mode);
    transformer.loss({kernels::kernels_for(device), core::runtime(device).stream(), memory, &tape}, batch, {}, places);
    tape.backward();
  };
  size_t previous = SIZE_MAX;
  for (Recompute mode : {Recompute::none, Recompute::selective, Recompute::full}) {
    const core::Device shapes{core::DeviceKind::shapes, 0};
    ParameterStore outline(model.spec, {.device = shapes, .trains = true});
    Transformer outline_model(model.spec, outline);
    core::RecordingAllocator recorder;
    run(shapes, recorder, outline_model, mode);
    core::MemoryPlan plan = core::plan_memory(recorder.trace());
    EXPECT_LE(plan.total_bytes, recorder.trace().peak_bytes * 103 / 100) << "packing wastes more than 3 %";
    EXPECT_LT(plan.total_bytes, previous);
    previous = plan.total_bytes;
    core::PlannedArena arena(core::runtime({}).allocator(), plan);
    model.loss(mode);
    std::vector<float> expected = core::to_host_floats(model.store->grad());
    for (float& g : expected) g *= 45.0f;
    for (int step = 0; step < 2; ++step) {
      arena.begin_step();
      model.store->begin_step();
      run({}, arena, *model.transformer, mode);
      std::vector<float> found = core::to_host_floats(model.store->grad());
      for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4f * (1 + std::abs(expected[i])));
    }
  }
}

TEST(Weights, SavedFolderLoadsBackEqual) {
  for (const char* name : kFamilies) {
    Model model(name, false);
    std::string folder = std::filesystem::temp_directory_path() / ("sinter_weights_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    save_weights(*model.store, folder, DType::f32);
    ParameterStore again(model.spec, {.trains = true});
    load_weights(again, model.spec, io::TensorFolder(folder));
    EXPECT_EQ(core::to_host_floats(again.master()), core::to_host_floats(model.store->master())) << name;
    std::filesystem::remove_all(folder);
  }
}

// By way of f32 copies a model of 7B takes half a minute to load.
TEST(Weights, WholeTensorsGoFromTheFileToTheirPlacesAlsoFusedOnes) {
  for (const char* name : {"llama", "qwen3", "mixtral"}) {
    const spec::ModelSpec spec = spec::load_hf_config(golden(name) + "/config.json");
    const io::TensorFolder folder(golden(name));
    const ParameterStore store(spec, {.compute = DType::bf16});
    int fused = 0;
    for (const auto& slot : store.slots()) {
      if (slot.info.shape.rank() == 1) continue;  // norms have masters in f32
      EXPECT_TRUE(can_load_in_place(store, slot, folder)) << name << " " << slot.info.name;
      fused += slot.info.parts.size() > 1 ? 1 : 0;
    }
    EXPECT_GT(fused, 0) << name;
  }
}

// As transformers does: equal values pass; others would be other logits.
TEST(Weights, AHeadBesideATiedEmbeddingMustHoldTheSameValues) {
  Model model("qwen3", false);
  ASSERT_TRUE(model.spec.tied_head);
  const std::string folder = testing::TempDir() + "sinter_tied_" + std::to_string(::getpid());
  const io::TensorFolder original(golden("qwen3"));
  const io::TensorEntry& table = original.get("model.embed_tokens.weight");
  auto load = [&](float change) {
    std::filesystem::create_directories(folder);
    std::vector<float> head(reinterpret_cast<const float*>(table.bytes.data()),
                            reinterpret_cast<const float*>(table.bytes.data()) + table.num_elements());
    head.back() += change;
    io::SafetensorsWriter writer(folder + "/model.safetensors");
    for (const io::TensorEntry& e : original.entries()) writer.declare(e.name, e.dtype, e.shape);
    writer.declare("lm_head.weight", table.dtype, table.shape);
    for (const io::TensorEntry& e : original.entries()) writer.write(e.name, e.bytes);
    writer.write("lm_head.weight", std::as_bytes(std::span(head)));
    writer.commit();
    ParameterStore store(model.spec, {});
    load_weights(store, model.spec, io::TensorFolder(folder));
  };
  EXPECT_NO_THROW(load(0));
  try {
    load(0.5f);
    FAIL() << "a head with other values was dropped";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("hold different values"), std::string::npos) << e.what();
  }
  std::filesystem::remove_all(folder);
}

TEST(Weights, MissingAndMisshapenTensorsAreNamed) {
  Model model("llama", false);
  auto expect_error = [&](spec::ModelSpec spec, const char* part) {
    ParameterStore store(spec, {});
    try {
      load_weights(store, spec, io::TensorFolder(golden("llama")));
      FAIL();
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  spec::ModelSpec spec = model.spec;
  spec.num_layers = 4;
  expect_error(spec, "model.layers.3.");
  spec = model.spec;
  spec.num_layers = 2;
  expect_error(spec, "model.layers.2.");
  spec = model.spec;
  spec.ffn = 160;
  expect_error(spec, "shape (176, 64)");
  spec = model.spec;
  spec.qkv_bias = true;
  expect_error(spec, "q_proj.bias");
}

TEST(ParameterStore, InitialWeightsDependOnSeedAndNameOnly) {
  Model model("llama", false);
  ParameterStore same(model.spec, {.trains = true}), other(model.spec, {.trains = true});
  same.initialize(11);
  other.initialize(12);
  EXPECT_EQ(core::to_host_floats(same.master()), core::to_host_floats(model.store->master()));
  EXPECT_NE(core::to_host_floats(other.master()), core::to_host_floats(model.store->master()));
}

// Runs of a seed start from the same weights in every version of the program: the hash is that of the first one.
TEST(ParameterStore, InitialWeightsAreTheSameWithAnyThreadsAndInEveryVersion) {
  spec::ModelSpec spec = spec::load_hf_config(golden("llama") + "/config.json");
  spec.vocab_size = 5000;  // an embedding of several threads' pieces
  const int threads_before = base::num_threads();
  for (int threads : {1, 2, 3}) {
    base::set_num_threads(threads);
    ParameterStore store(spec, {.trains = true});
    store.initialize(11);
    uint64_t hash = 0;
    for (const ParameterStore::Slot& slot : store.slots())
      hash = base::hash_bytes(std::as_bytes(std::span<const float>(store.values_of(slot))), hash);
    EXPECT_EQ(hash, 0x273f56703fcaecaaull) << threads << " threads";
  }
  base::set_num_threads(threads_before);
}

}  // namespace
}  // namespace sinter::models
