// A golden model for tests of the engine.
//
// SINTER_TEST_DEVICE=cuda runs them on a GPU in batch-invariant mode, where all they claim must hold too:
//   SINTER_TEST_DEVICE=cuda test_engine --gtest_filter='*Invariance*Bf16:PagedDecode*Bf16'
#pragma once
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/source_dir.h"
#include "core/host_batch.h"
#include "io/tensor_folder.h"
#include "kernels/choices.h"
#include "models/transformer.h"
#include "models/weights.h"
#include "spec/hf_config.h"

namespace sinter::engine {

inline core::Device test_device() {
  static const core::Device device = [] {
    const char* name = std::getenv("SINTER_TEST_DEVICE");
    const core::Device chosen = core::parse_device(name && *name ? name : "cpu");
    kernels::set_batch_invariant(chosen);
    return chosen;
  }();
  return device;
}

struct TestModel {
  explicit TestModel(const std::string& name, core::DType compute, bool keeps_derived = true) {
    std::string folder = base::source_dir() + "/tests/golden/models/" + name;
    spec = spec::load_hf_config(folder + "/config.json");
    store = std::make_unique<models::ParameterStore>(
        spec, models::StoreOptions{
                  .device = test_device(), .compute = compute, .trains = false, .keeps_derived = keeps_derived});
    models::load_weights(*store, spec, io::TensorFolder(folder));
    transformer = std::make_unique<models::Transformer>(spec, *store);
  }
  spec::ModelSpec spec;
  std::unique_ptr<models::ParameterStore> store;
  std::unique_ptr<models::Transformer> transformer;
};

inline std::vector<int32_t> random_tokens(const base::CounterRng& rng, uint64_t first, int64_t count, int64_t vocab) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int32_t>(rng.bits(first + static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocab)));
  }
  return tokens;
}

// Hidden states of whole sequences without a cache: what training computes.
inline std::vector<float> training_forward(const TestModel& model, const std::vector<int32_t>& tokens) {
  core::DeviceRuntime& device = core::runtime(test_device());
  core::HostBatch host;
  host.add_sequence(tokens);
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  ops::Context context{kernels::kernels_for(test_device()), device.stream(), device.allocator(), nullptr};
  core::Tensor hidden = model.transformer->forward(context, batch, {}).value;
  return core::to_host_floats(model.transformer->logits(context, hidden));
}

// Log-probability of every token but the first, by training's loss.
inline std::vector<float> training_logprobs(const TestModel& model, const std::vector<int32_t>& tokens) {
  core::DeviceRuntime& device = core::runtime(test_device());
  core::HostBatch host;
  host.add_sequence(tokens);
  host.set_next_token_targets();
  core::RaggedBatch batch = core::upload(device.allocator(), host);
  ops::Context context{kernels::kernels_for(test_device()), device.stream(), device.allocator(), nullptr};
  models::LossPlaces places;
  places.losses = core::Tensor(device.allocator(), {batch.num_tokens}, core::DType::f32);
  model.transformer->loss(context, batch, {}, places);
  std::vector<float> values = core::to_host_floats(places.losses);
  values.pop_back();
  for (float& v : values) v = -v;
  return values;
}

}  // namespace sinter::engine
