// Tuning runs end to end on a tiny model: packing, accumulation, resuming, rollouts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/log.h"
#include "base/source_dir.h"
#include "base/threads.h"
#include "train/trainer.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

class TuneRun : public ::testing::Test {
 protected:
  void SetUp() override {
    base::set_num_threads(1);
    base::set_log_level(base::LogLevel::error);
    dir_ = (fs::temp_directory_path() / ("sinter-tune-" + std::to_string(getpid()))).string();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    std::ofstream chats(dir_ + "/chats.jsonl"), sums(dir_ + "/sums.jsonl");
    for (int i = 0; i < 8; ++i) {
      const std::string n = std::to_string(i), word(static_cast<size_t>(2 + 3 * (i % 4)), static_cast<char>('a' + i));
      chats << R"({"messages": [{"role": "user", "content": "Say )" << n << R"("}, {"role": "assistant", "content": ")"
            << word << R"("}]})"
            << "\n";
      sums << R"({"prompt": ")" << n << R"(+1=", "answer": ")" << i + 1 << R"("})"
           << "\n";
    }
  }
  void TearDown() override { fs::remove_all(dir_); }

  spec::TuneRecipe recipe(const std::string& run, const std::string& data, std::vector<std::string> more) const {
    const std::string models = base::source_dir() + "/tests/golden/tune/models";
    std::vector<std::string> keys{"model.path=" + models + "/policy",
                                  "data.tokenizer=" + models + "/tokenizer",
                                  "data.sources=" + dir_ + "/" + data,
                                  "data.sequence_length=64",
                                  "checkpoint.dir=" + dir_ + "/" + run,
                                  "schedule.kind=constant",
                                  "optimizer.lr=1e-3",
                                  "adapter.rank=4"};
    keys.insert(keys.end(), more.begin(), more.end());
    return spec::parse_tune_recipe("", "test", keys);
  }
  using MakePlan = train::RunPlan (*)(const spec::TuneRecipe&, const parallel::Mesh&);
  train::TrainResult run(MakePlan make, const std::string& name, const std::string& data,
                         std::vector<std::string> more) {
    const spec::TuneRecipe r = recipe(name, data, std::move(more));
    train::Trainer trainer(r.base, *self_,
                           [&](const spec::Recipe&, const parallel::Mesh& mesh) { return make(r, mesh); });
    return trainer.run();
  }
  std::string adapter(const std::string& run) const {
    return base::read_file(dir_ + "/" + run + "/latest/adapter_model.safetensors");
  }
  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::ifstream file(dir_ + "/" + run + "/metrics.jsonl");
    for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  std::string dir_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
};

TEST_F(TuneRun, PackedAndAccumulatedStepsAreThoseOfOneSampleARow) {
  const auto alone =
      run(make_sft_plan, "alone", "chats.jsonl", {"train.steps=2", "train.micro_batch=8", "tune.packing=false"});
  const auto packed = run(make_sft_plan, "packed", "chats.jsonl", {"train.steps=2", "train.micro_batch=8"});
  const auto summed = run(make_sft_plan, "summed", "chats.jsonl",
                          {"train.steps=2", "train.micro_batch=1", "train.batch_tokens=512", "tune.packing=false"});
  for (const auto* other : {&packed, &summed}) {
    ASSERT_EQ(other->losses.size(), alone.losses.size());
    EXPECT_NEAR(other->losses[0], alone.losses[0], 1e-6 * alone.losses[0]);
    EXPECT_NEAR(other->losses[1], alone.losses[1], 1e-5 * alone.losses[1]);
  }
  for (const char* name : {"packed", "summed"}) {
    EXPECT_NEAR(metrics(name)[0]["grad_norm"].get<double>(), metrics("alone")[0]["grad_norm"].get<double>(), 1e-5);
  }
  EXPECT_LT(alone.losses[1], alone.losses[0]);
}

TEST_F(TuneRun, AResumedRunEqualsTheUnbrokenOneBitForBit) {
  for (const std::string& states : {std::string("f32"), std::string("8bit")}) {
    const std::vector<std::string> keys{"train.micro_batch=2", "adapter.dropout=0.1", "optimizer.states=" + states};
    auto with = [&](const std::string& steps) {
      std::vector<std::string> all = keys;
      all.push_back("train.steps=" + steps);
      return all;
    };
    run(make_sft_plan, "whole" + states, "chats.jsonl", with("5"));
    run(make_sft_plan, "cut" + states, "chats.jsonl", with("2"));
    run(make_sft_plan, "cut" + states, "chats.jsonl", with("5"));
    EXPECT_EQ(adapter("whole" + states), adapter("cut" + states)) << states;
  }
}

TEST_F(TuneRun, RolloutsBeginOnPolicyAndResumeBitForBit) {
  const std::vector<std::string> keys{"train.micro_batch=4",   "tune.prompts=2",    "tune.group=4",
                                      "tune.max_new_tokens=6", "tune.iterations=2", "tune.rewards=length",
                                      "tune.kl=0.05"};
  auto with = [&](const std::string& steps) {
    std::vector<std::string> all = keys;
    all.push_back("train.steps=" + steps);
    return all;
  };
  run(make_grpo_plan, "whole", "sums.jsonl", with("5"));
  const std::vector<nlohmann::json> lines = metrics("whole");
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_EQ(lines[0]["ratio_error"].get<double>(), 0)
      << "the engine's log-probabilities are the training's, bit for bit";
  EXPECT_EQ(lines[2]["ratio_error"].get<double>(), 0) << "a new set, by the weights as they are then";
  EXPECT_EQ(lines[0]["kl"].get<double>(), 0) << "a new adapter is its base";
  for (const char* stop : {"2", "3"}) {  // between two sets, and within one
    const std::string name = std::string("cut") + stop;
    run(make_grpo_plan, name, "sums.jsonl", with(stop));
    run(make_grpo_plan, name, "sums.jsonl", with("5"));
    EXPECT_EQ(adapter("whole"), adapter(name)) << stop;
  }
}

}  // namespace
}  // namespace sinter::tune
