// Adapters: tables, folders, and what freezing means.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/source_dir.h"
#include "core/host_copy.h"
#include "io/tensor_folder.h"
#include "models/weights.h"
#include "spec/hf_config.h"
#include "train/optimizer.h"
#include "train/step.h"
#include "tune/adapter/merge.h"
#include "tune/adapter/peft.h"

namespace sinter::tune {
namespace {

std::string golden(const std::string& model) { return base::source_dir() + "/tests/golden/models/" + model; }

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

struct Adapted {
  explicit Adapted(const std::string& name, spec::AdapterSpec adapter, base::DType compute = base::DType::f32)
      : model(spec::load_hf_config(golden(name) + "/config.json")),
        table(spec::make_adapter_table(model, adapter)),
        store(spec::whole_table(table), {.compute = compute, .trains = true}),
        transformer(model, store) {
    models::load_weights(store, model, io::TensorFolder(golden(name)));
    initialize_adapter(store, 3);
  }
  data::MicroBatch batch(int64_t rows, int64_t tokens) const {
    data::MicroBatch batch;
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<int32_t> ids;
      for (int64_t t = 0; t < tokens; ++t) ids.push_back(static_cast<int32_t>((r * 37 + t * t + 5) % model.vocab_size));
      batch.add_sequence(ids);
    }
    batch.set_next_token_targets();
    for (int32_t target : batch.targets) batch.num_supervised += target >= 0;
    return batch;
  }
  // Two steps; the losses.
  std::vector<double> train(const data::MicroBatch& batch, autograd::Recompute recompute = autograd::Recompute::none) {
    train::StepShape shape{.num_tokens = batch.num_tokens(),
                           .num_sequences = batch.num_sequences(),
                           .window = batch.num_tokens() / batch.num_sequences(),
                           .recompute = recompute,
                           .compute = store.options().compute,
                           .seed = 9};
    const auto self = comm::make_self();
    const parallel::Mesh mesh(*self);
    train::StepRunner runner(transformer, shape, train::plan_step(model, shape, spec::whole_table(table)), mesh);
    train::Optimizer optimizer({.lr = 1e-2}, store);
    const auto control = core::make_tensor<float>(core::runtime({}).allocator(), {2}, {1.0f, 1.0f});
    std::vector<double> losses;
    for (int64_t step = 0; step < 2; ++step) {
      losses.push_back(runner.run({batch}, step).loss);
      optimizer.update(control, 1.0, step);
    }
    losses.push_back(runner.run({batch}, 2).loss);
    return losses;
  }

  spec::ModelSpec model;
  std::vector<spec::ParameterSpec> table;
  models::ParameterStore store;
  models::Transformer transformer;
};

TEST(Adapter, OnlyTheAdapterHasGradientsAndStatesAndOnlyItMoves) {
  for (const base::DType compute : {base::DType::f32, base::DType::bf16}) {
    for (const char* name : {"llama", "gpt2", "qwen3_moe"}) {
      spec::AdapterSpec adapter{.rank = 4, .targets = {name == std::string("gpt2") ? "c_attn" : "v_proj"}};
      Adapted run(name, adapter, compute);
      std::map<std::string, std::vector<float>> before;
      for (const auto& slot : run.store.slots()) before[slot.info.name] = run.store.values_of(slot);
      int64_t own = 0;
      for (const auto& slot : run.store.slots()) {
        const bool is_own = slot.info.role == spec::ParameterRole::adapter;
        EXPECT_EQ(run.store.is_trained(slot), is_own) << slot.info.name;
        EXPECT_EQ(static_cast<bool>(slot.parameter.grad), is_own) << slot.info.name;
        if (is_own) own += slot.info.num_elements();
      }
      EXPECT_LT(run.store.num_trainable(), own + 64 * static_cast<int64_t>(run.store.slots().size()));
      const std::vector<double> losses = run.train(run.batch(2, 17));
      EXPECT_LT(losses[2], losses[0]) << name;
      for (const auto& slot : run.store.slots()) {
        const bool is_same = before[slot.info.name] == run.store.values_of(slot);
        EXPECT_EQ(is_same, slot.info.role != spec::ParameterRole::adapter) << name << " " << slot.info.name;
      }
    }
  }
}

TEST(Adapter, ANewOneChangesNothing) {
  for (const bool dora : {false, true}) {
    Adapted run("llama", {.rank = 4, .dora = dora});
    const data::MicroBatch host = run.batch(1, 13);
    auto logits = [&] {
      core::DeviceRuntime& device = core::runtime({});
      const core::RaggedBatch batch = core::upload(device.allocator(), host);
      const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator()};
      return core::to_host_floats(run.transformer.logits(context, run.transformer.forward(context, batch, {}).value));
    };
    const std::vector<float> with = logits();
    run.store.use_adapters(false);
    const std::vector<float> without = logits();
    for (size_t i = 0; i < with.size(); ++i) ASSERT_NEAR(with[i], without[i], dora ? 1e-5 : 0);
  }
}

TEST(Adapter, RecomputationGivesTheSameBitsWithDropoutToo) {
  const spec::AdapterSpec adapter{.rank = 4, .dropout = 0.2};
  Adapted plain("llama", adapter), full("llama", adapter), other("llama", {.rank = 4});
  const data::MicroBatch batch = plain.batch(2, 17);
  const std::vector<double> losses = plain.train(batch);
  EXPECT_EQ(losses, full.train(batch, autograd::Recompute::full));
  EXPECT_NE(losses, other.train(batch)) << "dropout does something";
}

TEST(Adapter, WhatMatchesNothingIsNamed) {
  const spec::ModelSpec model = spec::load_hf_config(golden("llama") + "/config.json");
  EXPECT_NE(error_of([&] { spec::make_adapter_table(model, {.targets = {"q_prj"}}); }).find("q_proj"),
            std::string::npos);
  EXPECT_NE(error_of([&] { spec::make_adapter_table(model, {.targets = {"lm_head"}}); }).find("lm_head"),
            std::string::npos);
  EXPECT_NE(error_of([&] { spec::make_adapter_table(model, {.modules_to_save = {"k_proj"}}); }).find("q_proj"),
            std::string::npos);
}

TEST(Adapter, PatternsLayersAndExclusionsNameModulesAsInPeft) {
  const spec::ModelSpec model = spec::load_hf_config(golden("llama") + "/config.json");
  const auto found = [&](PeftConfig config) { return resolve_targets(config, model).targets; };
  using Names = std::vector<std::string>;
  EXPECT_EQ(found({.pattern = R"(model\.layers\.[12]\..*\.(q|v)_proj)"}),
            (Names{"model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.v_proj",
                   "model.layers.2.self_attn.q_proj", "model.layers.2.self_attn.v_proj"}));
  PeftConfig layers{.adapter = {.targets = {"o_proj"}}, .layers = {0, 2}};
  EXPECT_EQ(found(layers), (Names{"model.layers.0.self_attn.o_proj", "model.layers.2.self_attn.o_proj"}));
  PeftConfig excluding{.adapter = {.targets = {"o_proj"}}, .excluded = {"layers.1.self_attn.o_proj"}};
  EXPECT_EQ(found(excluding), found(layers));
  EXPECT_NE(error_of([&] { found({.adapter = {.targets = {"o_proj"}}, .layers = {7}}); }).find("no module"),
            std::string::npos);
}

TEST(Adapter, AMergedModelGivesTheLogitsOfTheAdapter) {
  const std::string out = (std::filesystem::temp_directory_path() / "sinter-merge-test").string();
  std::filesystem::remove_all(out);
  const std::string folder = base::source_dir() + "/tests/golden/tune/peft/dora/adapter";
  const MergeResult result = merge_adapter(golden("llama3"), folder, out, {base::DType::f32});
  EXPECT_GT(result.changed, 0);
  EXPECT_LT(result.changed, result.tensors);
  EXPECT_NE(error_of([&] { merge_adapter(golden("llama3"), folder, out, {}); }).find("there already"),
            std::string::npos);
  EXPECT_NO_THROW(io::TensorFolder{out});
  std::filesystem::remove_all(out);
}

}  // namespace
}  // namespace sinter::tune
