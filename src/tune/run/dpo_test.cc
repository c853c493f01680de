#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "base/file.h"
#include "base/log.h"
#include "base/source_dir.h"
#include "comm/communicator.h"
#include "train/trainer.h"
#include "tune/run/reward_model.h"
#include "tune/run/tune_plan.h"

namespace sinter::tune {
namespace {

namespace fs = std::filesystem;

class DpoTest : public ::testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::error);
    dir_ = ::testing::TempDir() + "dpo_test_" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    // The model's folder and its tokenizer lie apart in the golden answers.
    const std::string golden = base::source_dir() + "/tests/golden/tune/models";
    fs::copy(golden + "/policy", dir_ + "/model");
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
      fs::copy(golden + "/tokenizer/" + name, dir_ + "/model/" + name);
    std::string rows, labelled;
    for (int i = 0; i < 12; ++i) {
      const std::string prompt = fmt::format(R"([{{"role":"user","content":"Say number {}."}}])", i);
      const std::string good = fmt::format(R"([{{"role":"assistant","content":"The number is {}."}}])", i),
                        bad = fmt::format(R"([{{"role":"assistant","content":"No, {}!"}}])", i);
      rows += fmt::format("{{\"prompt\":{},\"chosen\":{},\"rejected\":{}}}\n", prompt, good, bad);
      labelled += fmt::format("{{\"prompt\":{},\"completion\":{},\"label\":{}}}\n", prompt, i % 2 ? good : bad,
                              i % 2 ? "true" : "false");
    }
    base::write_file_atomic(dir_ + "/pairs.jsonl", rows);
    base::write_file_atomic(dir_ + "/labelled.jsonl", labelled);
  }

  using MakePlan = train::RunPlan (*)(const spec::TuneRecipe& recipe, const parallel::Mesh& mesh);
  train::TrainResult tune(const std::string& run, std::vector<std::string> overrides, MakePlan make = make_dpo_plan) {
    const std::string text = fmt::format(
        "[model]\npath = '{0}/model'\n[data]\nsources = '{0}/pairs.jsonl'\nsequence_length = 64\n[train]\n"
        "micro_batch = 4\nsteps = 6\n[optimizer]\nlr = 5e-3\n[schedule]\nkind = 'constant'\n[checkpoint]\n"
        "dir = '{0}/{1}'\n[adapter]\nrank = 4\n",
        dir_, run);
    const spec::TuneRecipe recipe = spec::parse_tune_recipe(text, "test", overrides);
    const auto self = comm::make_self();
    train::Trainer trainer(recipe.base, *self,
                           [&](const spec::Recipe&, const parallel::Mesh& mesh) { return make(recipe, mesh); });
    return trainer.run();
  }

  std::string dir_;
};

TEST_F(DpoTest, TheFirstStepOfAnAdapterIsAtItsReference) {
  const train::TrainResult result = tune("run", {});
  ASSERT_EQ(result.losses.size(), 6u);
  EXPECT_NEAR(result.losses[0], std::log(2.0), 1e-6);
  EXPECT_LT(result.losses.back(), 0.6);
}

TEST_F(DpoTest, TheModelBeforeTuningIsTheReferenceOfAllOfIt) {
  const train::TrainResult adapter = tune("adapter", {"train.steps=1"});
  const train::TrainResult full = tune("full", {"adapter.kind=full", "train.steps=3", "optimizer.lr=1e-3"});
  EXPECT_NEAR(full.losses[0], adapter.losses[0], 1e-6);
  EXPECT_LT(full.losses.back(), full.losses[0]);
}

TEST_F(DpoTest, HeldOutPairsAreHeldAgainstTheSameReference) {
  const std::vector<std::string> keys{"data.validation_share=0.25", "optimizer.lr=1e-9", "train.steps=1"};
  const train::TrainResult pairs = tune("pairs", keys);
  ASSERT_TRUE(pairs.validation_loss.has_value());
  EXPECT_NEAR(*pairs.validation_loss, std::log(2.0), 1e-5) << "an adapter that has learned nothing";
}

TEST_F(DpoTest, EveryLossOfTheFamilyFalls) {
  for (const char* loss : {"hinge", "ipo", "simpo", "cpo", "orpo"}) {
    const train::TrainResult result = tune(loss, {std::string("tune.loss=") + loss});
    EXPECT_LT(result.losses.back(), result.losses[0]) << loss;
  }
}

TEST_F(DpoTest, LabelledAnswersAreLearnedByKto) {
  const train::TrainResult result = tune("kto", {"tune.loss=kto", "data.sources='" + dir_ + "/labelled.jsonl'"});
  EXPECT_NEAR(result.losses[0], 0.5, 1e-6);  // every ratio is 1
  EXPECT_LT(result.losses.back(), 0.5);
}

TEST_F(DpoTest, ARewardModelLearnsWhichAnswerIsBetter) {
  const std::vector<std::string> full = {"adapter.kind=full", "optimizer.lr=2e-3", "train.steps=8"};
  const train::TrainResult result = tune("reward", full, make_reward_plan);
  EXPECT_NEAR(result.losses[0], std::log(2.0), 0.2);
  EXPECT_LT(result.losses.back(), 0.3);
  const std::string config = base::read_file(result.checkpoint + "/config.json");
  EXPECT_NE(config.find("LlamaForSequenceClassification"), std::string::npos) << config;
}

TEST_F(DpoTest, ARewardModelsAdapterKeepsItsScoreAndRewardsAnswers) {
  const train::TrainResult result = tune("reward", {"train.steps=12", "optimizer.lr=1e-2"}, make_reward_plan);
  EXPECT_LT(result.losses.back(), 0.5 * result.losses[0]);
  const std::string config = base::read_file(result.checkpoint + "/adapter_config.json");
  EXPECT_NE(config.find("SEQ_CLS"), std::string::npos) << config;
  const auto tokenizer = tokenizer::Tokenizer::load(dir_ + "/model");
  const auto reward = make_model_reward(result.checkpoint, {}, tokenizer, 64);
  const std::vector<int32_t> prompt = tokenizer.encode("Say number 3."), good = tokenizer.encode("The number is 3."),
                             bad = tokenizer.encode("No, 3!");
  const std::vector<RewardInput> inputs{{.prompt_ids = prompt, .ids = good}, {.prompt_ids = prompt, .ids = bad}};
  const std::vector<double> together = reward->score(inputs);
  EXPECT_GT(together[0], together[1]);
  EXPECT_EQ(reward->score({&inputs[1], 1})[0], together[1]) << "an answer's reward does not depend on its batch";
}

TEST_F(DpoTest, ARewardModelLeavesOutAHeadThatIsNotTheTokenTable) {
  const std::string base = base::source_dir() + "/tests/golden/models/mistral";
  const train::TrainResult result =
      tune("reward", {"model.path='" + base + "'", "data.tokenizer='" + dir_ + "/model'", "train.steps=2"},
           make_reward_plan);
  EXPECT_NEAR(result.losses[0], std::log(2.0), 0.2);
  EXPECT_NO_THROW(open_reward_model(result.checkpoint, {}));
}

TEST_F(DpoTest, AccumulationChangesNothing) {
  // All pairs in one micro-batch, and one pair in each of many.
  const train::TrainResult whole =
      tune("whole", {"train.micro_batch=32", "train.steps=2", "tune.loss=orpo", "data.shuffle=false"});
  const train::TrainResult parts = tune("parts", {"train.micro_batch=2", "train.batch_tokens=2048", "train.steps=2",
                                                  "tune.loss=orpo", "data.shuffle=false"});
  for (size_t i = 0; i < 2; ++i) EXPECT_NEAR(whole.losses[i], parts.losses[i], 2e-6);
}

TEST_F(DpoTest, AResumedRunEqualsTheUnbrokenOneBitForBit) {
  const train::TrainResult whole = tune("unbroken", {"train.steps=6"});
  tune("parted", {"train.steps=3"});
  const train::TrainResult parted = tune("parted", {"train.steps=6"});
  ASSERT_FALSE(parted.losses.empty());
  EXPECT_EQ(whole.losses.back(), parted.losses.back());
}

}  // namespace
}  // namespace sinter::tune
