// Training on several ranks equals training on one: losses, first gradients, and a state that any number of ranks
// loads.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/communicator.h"
#include "data/token_shard.h"
#include "train/file_size_limit.h"
#include "train/run_plan.h"
#include "train/trainer.h"

namespace sinter {
namespace {

namespace fs = std::filesystem;

class DistTrain : public ::testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::error);
    // One folder for all ranks: named by rank 0.
    int64_t id = comm::world().max(comm::world().rank() == 0 ? ::getpid() : 0);
    dir_ = (fs::temp_directory_path() / ("sinter_dist_" + std::to_string(id))).string();
    if (comm::world().rank() == 0) {
      fs::remove_all(dir_);
      fs::create_directories(dir_);
      data::TokenShardWriter writer(dir_ + "/a.tok", 48, 0);
      base::CounterRng rng{5, 1};
      for (uint64_t d = 0; d < 80; ++d) {
        std::vector<int32_t> tokens{static_cast<int32_t>(rng.bits(2 * d) % 47)};
        const uint32_t length = 2 + rng.bits(2 * d + 1) % 60;  // so that ranks hold unequal counts of targets
        while (tokens.size() < length) tokens.push_back((tokens.back() * 5 + 3) % 47);
        writer.add_document(tokens);
      }
      writer.commit();
    }
    comm::world().barrier();
  }
  void TearDown() override {
    comm::world().barrier();
    if (comm::world().rank() == 0) fs::remove_all(dir_);
  }
  // 12 sequences a step: whole micro-batches on 1, 2 and 3 ranks.
  spec::Recipe recipe(const std::string& run, std::vector<std::string> overrides = {}) const {
    const std::string text =
        "[model]\nfamily = 'llama'\nhidden = 32\nlayers = 3\nheads = 4\nffn = 48\n[data]\nsources = '" + dir_ +
        "/a.tok'\nvalidation = '" + dir_ +
        "/a.tok'\nsequence_length = 20\n[train]\nsteps = 5\nmicro_batch = 2\nbatch_tokens = 240\n" +
        "threads = 1\n[optimizer]\nlr = 3e-3\neps = 1e-5\n[schedule]\nkind = 'constant'\n[parallel]\nbucket_mib = "
        "0.01\n[checkpoint]\ndir = '" +
        dir_ + "/" + run + "'\n";
    return spec::parse_recipe(text, "test", overrides);
  }
  // The same run on this process alone, in a folder of its own.
  std::string alone(const std::string& run) const { return run + "_alone" + std::to_string(comm::world().rank()); }

  std::string dir_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
};

std::vector<float> first_gradient(const spec::Recipe& recipe, comm::Communicator& comm) {
  const parallel::Mesh mesh(comm, spec::make_layout(recipe, comm.size()));
  train::RunPlan plan = train::make_run_plan(recipe, mesh);
  models::ParameterStore store(plan.model, {.trains = true});
  models::Transformer transformer(plan.model, store);
  store.initialize(1);
  train::StepRunner runner(transformer, plan.shape, plan.memory, mesh);
  runner.run(plan.loader->step(0), 0);
  if (comm.size() > 1) {
    EXPECT_GT(runner.gradients().num_overlapped(), runner.gradients().num_buckets() / 2);
  }
  return core::to_host<float>(store.grad());
}

TEST_F(DistTrain, FirstGradientsEqualOneRank) {
  for (const char* family : {"llama", "gpt2"}) {
    const std::string override_text = std::string("model.family=") + family;
    const std::vector<float> ranks = first_gradient(recipe("g", {override_text}), comm::world());
    const std::vector<float> one = first_gradient(recipe(alone("g"), {override_text}), *self_);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < one.size(); ++i) {
      difference += std::pow(double(ranks[i]) - one[i], 2);
      norm += std::pow(double(one[i]), 2);
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-6) << family;
  }
}

TEST_F(DistTrain, LossesEqualOneRankAndRepeatBitForBit) {
  auto run = [&](const std::string& name, comm::Communicator& comm) {
    return train::Trainer(recipe(name), comm).run();
  };
  const train::TrainResult ranks = run("r", comm::world()), again = run("again", comm::world());
  const train::TrainResult one = run(alone("r"), *self_);
  ASSERT_TRUE(ranks.validation_loss && one.validation_loss);
  EXPECT_NEAR(*ranks.validation_loss, *one.validation_loss, 1e-5 * *one.validation_loss);
  EXPECT_EQ(ranks.loss, again.loss);
  if (comm::world().rank() != 0) return;
  ASSERT_EQ(ranks.losses.size(), one.losses.size());
  for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(ranks.losses[i], one.losses[i], 1e-6 * one.losses[i]) << i;
}

TEST_F(DistTrain, DropoutDrawsWhatOneRankWould) {
  auto loss = [&](const std::string& name, comm::Communicator& comm) {
    return train::Trainer(recipe(name, {"model.dropout=0.2", "train.steps=2"}), comm).run().loss;
  };
  const double one = loss(alone("d"), *self_);
  EXPECT_NEAR(loss("d", comm::world()), one, 1e-6 * one);
}

TEST_F(DistTrain, CheckpointsWrittenBehindTheTrainingAreThoseItWouldWaitFor) {
  for (const char* background : {"true", "false"}) {
    train::Trainer(recipe(background, {"checkpoint.every=1", "checkpoint.keep=9", "checkpoint.export_every=2",
                                       std::string("checkpoint.background=") + background}),
                   comm::world())
        .run();
  }
  if (comm::world().rank() != 0) return;
  for (int step = 1; step <= 5; ++step) {
    const std::string name = "/step-0000000" + std::to_string(step) + "/";
    std::vector<std::string> files;
    for (int r = 0; r < comm::world().size(); ++r)
      files.push_back("state/rank-0000" + std::to_string(r) + ".safetensors");
    const bool has_model = step % 2 == 0 || step == 5;
    EXPECT_EQ(fs::exists(dir_ + "/true" + name + "config.json"), has_model);
    if (has_model) files.push_back("model.safetensors");
    for (const std::string& file : files)
      EXPECT_EQ(base::read_file(dir_ + "/true" + name + file), base::read_file(dir_ + "/false" + name + file)) << name;
  }
}

// The disk of the last rank is full. All ranks train to the end, agree that there is no checkpoint, and fail together.
TEST_F(DistTrain, AFullDiskOfOneRankIsEveryonesFailure) {
  const bool is_full = comm::world().rank() == comm::world().size() - 1;
  for (const char* background : {"true", "false"}) {
    std::string error;
    try {
      std::optional<train::FileSizeLimit> limit;
      if (is_full) limit.emplace(10000);
      train::Trainer(recipe(std::string("full_") + background,
                            {"checkpoint.every=2", std::string("checkpoint.background=") + background}),
                     comm::world())
          .run();
    } catch (const base::Error& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("the last checkpoint, of step 5"), std::string::npos) << error;
    EXPECT_NE(error.find(is_full ? "File too large" : "another rank"), std::string::npos) << error;
    comm::world().barrier();
    EXPECT_FALSE(fs::exists(dir_ + "/full_" + background + "/latest"));
    EXPECT_FALSE(fs::exists(dir_ + "/full_" + background + "/step-00000005.tmp"));
    comm::world().barrier();
  }
  // The same folder, the disk no longer full.
  const double loss = train::Trainer(recipe("full_true"), comm::world()).run().loss;
  EXPECT_EQ(loss, train::Trainer(recipe("never_full"), comm::world()).run().loss);
}

TEST_F(DistTrain, AStateOfManyRanksGoesOnOnOne) {
  train::Trainer(recipe("s", {"train.steps=3"}), comm::world()).run();
  train::Trainer(recipe("whole"), comm::world()).run();
  comm::world().barrier();
  double resumed = 0;
  if (comm::world().rank() == 0) resumed = train::Trainer(recipe("s"), *self_).run().loss;
  resumed = comm::world().sum(resumed);
  const double whole = train::Trainer(recipe(alone("whole")), *self_).run().loss;
  EXPECT_NEAR(resumed, whole, 1e-5 * whole);
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sinter::comm::world();
  return RUN_ALL_TESTS();
}
