// A model in use that is given other weights answers as if it had been opened with them.
#include "models/replace_weights.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/source_dir.h"
#include "core/host_batch.h"
#include "models/weights.h"

namespace sinter::models {
namespace {

std::string golden(const std::string& name) { return base::source_dir() + "/tests/golden/models/" + name; }

// Another checkpoint of the same model: all weights drawn anew.
std::string other_checkpoint(const std::string& name) {
  const std::string folder = testing::TempDir() + "/replace_weights_" + name;
  std::filesystem::create_directories(folder);
  const OpenModel model = open_model(golden(name), {});
  model.store->initialize(7);
  save_weights(*model.store, folder, core::DType::f32);
  std::filesystem::copy_file(golden(name) + "/config.json", folder + "/config.json",
                             std::filesystem::copy_options::overwrite_existing);
  return folder;
}

std::vector<float> logits_of(const OpenModel& model) {
  core::DeviceRuntime& device = core::runtime({});
  core::HostBatch host;
  host.add_sequence(std::vector<int32_t>{5, 7, 3, 9, 11, 2, 4});
  const core::RaggedBatch batch = core::upload(device.allocator(), host);
  const ops::Context context{kernels::kernels_for({}), device.stream(), device.allocator(), nullptr};
  return core::to_host_floats(model.transformer->logits(context, model.transformer->forward(context, batch, {}).value));
}

TEST(ReplaceWeights, TheModelAnswersAsTheOtherCheckpointMappedOrCopied) {
  for (const char* name : {"llama", "gpt2", "mixtral"}) {
    const std::string other = other_checkpoint(name);
    for (core::DType compute : {core::DType::f32, core::DType::bf16}) {
      for (bool maps : {false, true}) {
        const OpenOptions options{.compute = compute, .maps = maps};
        OpenModel model = open_model(golden(name), options);
        const std::vector<float> before = logits_of(model);
        {
          const OpenModel fresh = open_model(other, options);
          replace_weights(model, fresh, other);
          EXPECT_EQ(logits_of(model), logits_of(fresh)) << name;
        }
        EXPECT_NE(logits_of(model), before) << name;  // what was read lives on
        replace_weights(model, open_model(golden(name), options), golden(name));
        EXPECT_EQ(logits_of(model), before) << name;
      }
    }
  }
}

TEST(ReplaceWeights, AnotherModelOrFormatIsRefusedAndNothingChanges) {
  OpenModel model = open_model(golden("llama"), {.maps = true});
  const std::vector<float> before = logits_of(model);
  const auto refusal = [&](const std::string& folder, const OpenOptions& options) -> std::string {
    try {
      replace_weights(model, open_model(folder, options), folder);
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(golden("mixtral"), {.maps = true}).find("config.json differs"), std::string::npos);
  EXPECT_NE(refusal(golden("llama"), {.compute = core::DType::bf16}).find("in the model in use"), std::string::npos);
  EXPECT_EQ(logits_of(model), before);
}

}  // namespace
}  // namespace sinter::models
