// What a run takes of its device beside what it planned, under every way to divide and move state; weights are gathered
// one block ahead, gradients reduced behind the backward pass.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "comm/communicator.h"
#include "data/token_shard.h"
#include "train/chunks.h"
#include "train/optimizer.h"
#include "train/run_plan.h"
#include "train/trainer.h"

namespace sinter {
namespace {

namespace fs = std::filesystem;

class DistMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::error);
    const int64_t id = comm::world().max(comm::world().rank() == 0 ? ::getpid() : 0);
    dir_ = (fs::temp_directory_path() / ("sinter_memory_" + std::to_string(id))).string();
    if (comm::world().rank() == 0) {
      fs::remove_all(dir_);
      fs::create_directories(dir_);
      data::TokenShardWriter writer(dir_ + "/a.tok", 1000, 0);
      const base::CounterRng rng{5, 1};
      for (uint64_t d = 0; d < 100; ++d) {
        std::vector<int32_t> tokens;
        for (uint64_t i = 0; i < 100; ++i) tokens.push_back(static_cast<int32_t>(rng.bits(d * 100 + i) % 999));
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
  // Two micro-batches a step on each rank.
  spec::Recipe recipe(const std::vector<std::string>& overrides) const {
    const std::string text =
        "[model]\nfamily = 'llama'\nhidden = 128\nlayers = 7\nheads = 4\nffn = 384\ntied_head = false\n[data]\nsources "
        "= "
        "'" +
        dir_ + "/a.tok'\nsequence_length = 64\n[train]\nsteps = 2\nmicro_batch = 2\nbatch_tokens = " +
        std::to_string(256 * comm::world().size()) +
        "\nthreads = 1\n[parallel]\nbucket_mib = 0.25\n[checkpoint]\ndir = '" + dir_ + "/run'\nbackground = false\n";
    return spec::parse_recipe(text, "test", overrides);
  }
  struct Bytes {
    double planned = 0, taken = 0, offloaded = 0, activations = 0, parameters = 0;
    nlohmann::json rows = {};  // of the plan
  };
  Bytes run(const std::vector<std::string>& overrides) {
    core::Allocator& allocator = core::runtime({}).allocator();
    comm::world().barrier();
    if (comm::world().rank() == 0) fs::remove_all(dir_ + "/run");
    comm::world().barrier();
    train::Trainer trainer(recipe(overrides), comm::world());
    const nlohmann::json plan = nlohmann::json::parse(trainer.plan_json());
    const size_t before = allocator.stats().current_bytes;
    allocator.reset_peak();
    trainer.run();
    return {plan["memory_bytes"]["all"].get<double>(), static_cast<double>(allocator.stats().peak_bytes - before),
            plan["offloaded_bytes"].get<double>(),     plan["memory_bytes"]["activations"].get<double>(),
            plan["parameters"].get<double>(),          plan["memory_bytes"]};
  }
  std::string dir_;
};

TEST_F(DistMemory, WhatIsTakenIsWhatWasPlanned) {
  struct Case {
    std::vector<std::string> overrides;
    double limit;
  };
  std::vector<Case> cases{
      {{"parallel.zero=0"}, 0.03},
      {{"parallel.zero=1"}, 0.03},
      {{"parallel.zero=2"}, 0.03},
      {{"parallel.zero=3"}, 0.03},
      {{"parallel.zero=3", "train.recompute=full"}, 0.03},
      {{"parallel.zero=1", "train.recompute=selective"}, 0.03},
      {{"parallel.zero=2", "train.precision=bf16"}, 0.03},
      {{"parallel.zero=1", "parallel.offload_optimizer=true"}, 0.05},
      {{"parallel.zero=3", "parallel.offload_optimizer=true", "parallel.offload_gradients=true",
        "parallel.offload_parameters=true", "parallel.offload_activations=true", "train.recompute=full"},
       0.05}};
  const int ranks = comm::world().size();
  if (ranks % 2 == 0) {
    const std::string replica = "parallel.replica=" + std::to_string(ranks / 2);
    for (const char* zero : {"parallel.zero=1", "parallel.zero=2", "parallel.zero=3"})
      cases.push_back({{"parallel.dp=" + std::to_string(ranks), replica, zero}, 0.03});
  }
  const std::string all = std::to_string(ranks);
  for (const char* schedule : {"gpipe", "1f1b", "zb-h1"})
    cases.push_back({{"parallel.pp=" + all, "parallel.schedule=" + std::string(schedule)}, 0.05});
  // The first rank reads a table back whole when it writes the model's folder.
  cases.push_back({{"parallel.pp=" + all, "model.vocab_size=8000"}, 0.05});
  if (ranks != 3) cases.push_back({{"parallel.tp=" + all, "parallel.sequence_parallel=true"}, 0.03});
  cases.push_back({{"parallel.cp=" + all, "data.sequence_length=48", "train.micro_batch=1",
                    "train.batch_tokens=" + std::to_string(48 * 2)},
                   0.03});
  cases.push_back(
      {{"model.family=mixtral", "model.experts=12", "model.experts_per_token=2", "parallel.ep=" + all}, 0.03});
  for (const Case& c : cases) {
    const Bytes bytes = run(c.overrides);
    std::string name;
    for (const std::string& text : c.overrides) name += text + " ";
    EXPECT_NEAR(bytes.taken / bytes.planned, 1, c.limit) << name;
    if (comm::world().rank() < 2)
      printf("rank %d  planned %9.0f  taken %9.0f  %.3f  %s\n", comm::world().rank(), bytes.planned, bytes.taken,
             bytes.taken / bytes.planned, name.c_str());
  }
}

// ZeRO's table in small, for any number of ranks: each stage divides one more of optimizer, gradients and weights.
TEST_F(DistMemory, EveryStageHoldsItsShareOfTheState) {
  const int ranks = comm::world().size();
  double before = 0;
  for (int zero = 0; zero <= 3; ++zero) {
    const Bytes bytes = run({"model.layers=14", "parallel.zero=" + std::to_string(zero)});
    EXPECT_NEAR(bytes.taken / bytes.planned, 1, 0.03) << zero;
    auto row = [&](const char* name) { return bytes.rows.at(name).get<double>() / bytes.parameters; };
    const double optimizer = row("optimizer (f32)"), gradients = row("gradients (f32)"),
                 weights = row("weights (f32 masters)");
    EXPECT_NEAR(optimizer, zero >= 1 ? 8.0 / ranks : 8, 0.1) << zero;
    EXPECT_NEAR(weights, zero == 3 ? 4.0 / ranks : 4, 0.1) << zero;
    // Two whole blocks of fourteen, and four of a rank's pieces of one, to which micro-batches are added.
    const double blocks = zero >= 2 && ranks > 1 ? 4 * 2.0 / 14 * (1 + 2.0 / ranks) : 0;
    EXPECT_GE(gradients, (zero >= 2 ? 4.0 / ranks : 4) - 0.1) << zero;
    EXPECT_LE(gradients, (zero >= 2 ? 4.0 / ranks : 4) + blocks + 0.1) << zero;
    EXPECT_TRUE(zero == 0 || ranks == 1 || bytes.taken < before) << zero;
    before = bytes.taken;
    if (comm::world().rank() == 0)
      printf("ranks %d  zero %d  bytes a parameter: weights %.2f  gradients %.2f  optimizer %.2f; in all %.2f MiB\n",
             ranks, zero, weights, gradients, optimizer, bytes.taken / 0x1p20);
  }
}

TEST_F(DistMemory, AModelLargerThanTheDeviceTrainsByOffload) {
  const double whole = run({"model.layers=24", "parallel.zero=0"}).planned;
  const std::string limit = "parallel.device_memory_gib=" + std::to_string(whole / 4 / 0x1p30);
  EXPECT_THROW(run({"model.layers=24", "parallel.zero=0", limit}), base::Error);
  const Bytes bytes =
      run({"model.layers=24", "parallel.zero=3", "parallel.offload_optimizer=true", "parallel.offload_gradients=true",
           "parallel.offload_parameters=true", "parallel.offload_activations=true", "train.recompute=full", limit,
           "parallel.offload_folder='" + dir_ + "/offload'", "train.micro_batch=1"});
  EXPECT_LE(bytes.planned, whole / 4);
  EXPECT_GT(bytes.offloaded, 0);
}

// 1F1B keeps at most as many micro-batches as there are stages, GPipe all of them.
TEST_F(DistMemory, OneForwardOneBackwardKeepsAsManyMicroBatchesAsStages) {
  const int ranks = comm::world().size();
  const std::string pp = "parallel.pp=" + std::to_string(ranks),
                    batch = "train.batch_tokens=" + std::to_string(512 * ranks);
  const double one = run({pp, batch, "parallel.schedule=1f1b"}).activations,
               all = run({pp, batch, "parallel.schedule=gpipe"}).activations;
  const double kept = ranks - comm::world().rank();  // of 4 x ranks micro-batches
  EXPECT_LE(all / one, 1.01 * 4 * ranks / kept);
  EXPECT_GE(all / one, 0.6 * 4 * ranks / kept);  // what a pass needs beside what it keeps is there once in both
}

// The head's rows of a vocabulary of 1,000 are the same share of a sequence's as all else.
TEST_F(DistMemory, ActivationsFallWithContextRanksSoThatALongSequenceFits) {
  const int ranks = comm::world().size();
  const std::string length = std::to_string(384 * ranks);
  const std::vector<std::string> base{"data.sequence_length=" + length, "train.micro_batch=1", "data.packing=stream",
                                      "model.max_positions=4096"};
  auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), base.begin(), base.end());
    return more;
  };
  const Bytes whole = run(with({"train.batch_tokens=" + std::to_string(384 * ranks * ranks)}));
  const std::string cp = "parallel.cp=" + std::to_string(ranks), batch = "train.batch_tokens=" + length;
  const Bytes part = run(with({cp, batch, "parallel.context=gather"}));
  EXPECT_LT(part.activations * ranks, 1.35 * whole.activations);  // keys of all ranks are gathered
  const Bytes ring = run(with({cp, batch, "parallel.context=ring"}));
  EXPECT_LT(ring.activations * ranks, 1.35 * whole.activations);
  const std::string limit = "parallel.device_memory_gib=" + std::to_string((whole.planned + part.planned) / 2 / 0x1p30);
  EXPECT_THROW(run(with({limit, "train.batch_tokens=" + std::to_string(384 * ranks * ranks)})), base::Error);
  run(with({cp, batch, limit}));
}

TEST_F(DistMemory, GathersAreOneBlockAheadAndReductionsBehind) {
  const spec::Recipe with = recipe({"parallel.zero=3"});
  const parallel::Mesh mesh(comm::world(), spec::make_layout(with, comm::world().size()));
  train::RunPlan plan = train::make_run_plan(with, mesh);
  models::ParameterStore store(spec::whole_table(plan.model), plan.store_options({}));
  store.initialize(1);
  const train::Chunks chunks(plan.model, store, plan.axes.get());
  train::StepRunner runner(chunks.all(), plan.axes.get(), plan.shape, plan.memory, mesh);
  const auto batches = plan.loader->step(0);
  runner.run(batches, 0);
  // Nine units; forward and backward of two micro-batches, where the turning points keep what is there.
  const int64_t units = plan.model.num_layers + 2, passes = static_cast<int64_t>(batches.size());
  EXPECT_EQ(runner.weights().num_gathers(), units + (2 * passes - 1) * (units - 2));
  EXPECT_EQ(runner.weights().num_gathers() - runner.weights().num_ahead(), 1);  // only the first had to be waited for
  EXPECT_EQ(runner.gradients().num_overlapped(), runner.gradients().num_buckets());
}

}  // namespace
}  // namespace sinter

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  sinter::comm::world();
  return RUN_ALL_TESTS();
}
