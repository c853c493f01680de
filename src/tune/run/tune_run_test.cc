// Tuning runs end to end on a tiny model: packing, accumulation, resuming, rollouts.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
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

TEST_F(TuneRun, NoiseOnEmbeddingsIsTheSameHoweverSamplesArePackedAndNoneIsInEvaluation) {
  const std::vector<std::string> whole{"train.micro_batch=8", "data.validation=" + dir_ + "/chats.jsonl",
                                       "log.eval_every=1"};
  const std::vector<std::string> split{"train.micro_batch=1", "train.batch_tokens=512", "tune.packing=false"};
  auto with = [](std::vector<std::string> keys, const std::string& more) {
    keys.insert(keys.end(), {"train.steps=2", "optimizer.lr=1e-4", more});
    return keys;
  };
  const std::string noise = "tune.neftune_alpha=30", none = "tune.neftune_alpha=0";
  const auto plain = run(make_sft_plan, "plain", "chats.jsonl", with(whole, none));
  const auto packed = run(make_sft_plan, "packed", "chats.jsonl", with(whole, noise));
  const auto summed = run(make_sft_plan, "summed", "chats.jsonl", with(split, noise));
  for (size_t step : {0, 1}) {
    EXPECT_GT(std::abs(packed.losses[step] - plain.losses[step]), 1e-3);
    EXPECT_NEAR(packed.losses[step], summed.losses[step], 1e-6 * packed.losses[step]);
  }
  EXPECT_NE(packed.losses[0] - plain.losses[0], packed.losses[1] - plain.losses[1]) << "every step draws anew";
  EXPECT_NEAR(metrics("packed")[0]["grad_norm"].get<double>(), metrics("summed")[0]["grad_norm"].get<double>(), 1e-5);
  // Steps of next to nothing: what evaluation tells is the untouched model's loss.
  auto validation = [&](const std::string& name, const std::string& more) {
    std::vector<std::string> keys = with(whole, more);
    keys.push_back("optimizer.lr=1e-12");
    run(make_sft_plan, name, "chats.jsonl", keys);
    return metrics(name)[0]["validation_loss"].get<double>();
  };
  EXPECT_NEAR(validation("still_noisy", noise), validation("still", none), 1e-6);
}

TEST_F(TuneRun, NoiseOnEmbeddingsIsOfSftAlone) {
  std::string error;
  try {
    run(make_grpo_plan, "none", "sums.jsonl", {"tune.neftune_alpha=5", "tune.max_new_tokens=4", "train.steps=1"});
  } catch (const base::Error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find("tune.neftune_alpha is 5"), std::string::npos) << error;
}

TEST_F(TuneRun, RowsThatNameTheirFieldsOtherwiseAreLearnedAlike) {
  std::ofstream(dir_ + "/usual.jsonl") << R"({"prompt":"1+1=","completion":"2"})"
                                       << "\n";
  std::ofstream(dir_ + "/own.jsonl") << R"({"problem":"1+1=","solution":"2"})"
                                     << "\n";
  run(make_sft_plan, "usual", "usual.jsonl", {"train.steps=2"});
  run(make_sft_plan, "own", "own.jsonl",
      {"train.steps=2", "tune.fields={prompt = \"problem\", completion = \"solution\"}"});
  EXPECT_EQ(adapter("own"), adapter("usual"));
}

TEST_F(TuneRun, WhereAllRowsAreTooLongTheErrorSaysHowLongTheyAre) {
  for (const auto& [make, data] :
       std::vector<std::pair<MakePlan, std::string>>{{make_sft_plan, "chats.jsonl"}, {make_grpo_plan, "sums.jsonl"}}) {
    std::string error;
    try {
      run(make, "long", data, {"data.sequence_length=6", "train.steps=1"});
    } catch (const base::Error& e) {
      error = e.what();
    }
    EXPECT_NE(error.find("the shortest"), std::string::npos) << error;
    EXPECT_NE(error.find("data.sequence_length is 6"), std::string::npos) << error;
  }
}

TEST_F(TuneRun, SamplingWithoutARewardIsRefused) {
  std::string error;
  try {
    run(make_grpo_plan, "none", "sums.jsonl", {"tune.rewards=[]", "tune.max_new_tokens=4", "train.steps=1"});
  } catch (const base::Error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find("tune.rewards is empty"), std::string::npos) << error;
}

TEST_F(TuneRun, AModelFolderThatIsNotThereIsNamed) {
  std::string error;
  try {
    run(make_sft_plan, "none", "chats.jsonl", {"model.path=" + dir_ + "/nowhere", "data.tokenizer=", "train.steps=1"});
  } catch (const base::Error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find("nowhere' is no folder"), std::string::npos) << error;
}

TEST_F(TuneRun, AResumedRunEqualsTheUnbrokenOneBitForBit) {
  for (const std::string& states : {std::string("f32"), std::string("8bit")}) {
    const std::vector<std::string> keys{"train.micro_batch=2", "adapter.dropout=0.1", "tune.neftune_alpha=5",
                                        "optimizer.states=" + states};
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
  struct Verb {
    const char* name;
    MakePlan make;
    std::vector<std::string> keys;
  };
  const std::vector<Verb> verbs{{"grpo", make_grpo_plan, {}},
                                {"ppo", make_ppo_plan, {"tune.gae_lambda=0.9"}},
                                {"ppo_kl_in_loss", make_ppo_plan, {"tune.kl_in_loss=true"}}};
  for (const auto& [verb, make, more] : verbs) {
    auto with = [&more = more](const std::string& steps) {
      std::vector<std::string> all{"train.micro_batch=4",   "tune.prompts=2",      "tune.group=4",
                                   "tune.max_new_tokens=6", "tune.iterations=2",   "tune.rewards=length",
                                   "tune.kl=0.05",          "train.steps=" + steps};
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const std::string whole = std::string(verb) + "whole";
    run(make, whole, "sums.jsonl", with("5"));
    const std::vector<nlohmann::json> lines = metrics(whole);
    ASSERT_EQ(lines.size(), 5u);
    EXPECT_EQ(lines[0]["ratio_error"].get<double>(), 0)
        << "the engine's log-probabilities are the training's, bit for bit";
    EXPECT_NE(lines[1]["ratio_error"].get<double>(), 0) << "the second step of a set";
    EXPECT_EQ(lines[2]["ratio_error"].get<double>(), 0) << "a new set, by the weights as they are then";
    EXPECT_EQ(lines[0]["kl"].get<double>(), 0) << "a new adapter is its base";
    for (const char* stop : {"2", "3"}) {  // between two sets, and within one
      const std::string name = std::string(verb) + "cut" + stop;
      run(make, name, "sums.jsonl", with(stop));
      run(make, name, "sums.jsonl", with("5"));
      EXPECT_EQ(adapter(whole), adapter(name)) << verb << " stopped after " << stop;
    }
  }
}

TEST_F(TuneRun, ValuesOfPpoAreLearnedAndKept) {
  const std::vector<std::string> keys{"train.micro_batch=8",   "tune.prompts=4",      "tune.group=4",
                                      "tune.max_new_tokens=6", "tune.rewards=length", "train.steps=30",
                                      "tune.value_clip=10",    "optimizer.lr=3e-3"};
  for (const auto& [kind, precision] :
       {std::pair("lora", "fp32"), std::pair("full", "fp32"), std::pair("lora", "bf16")}) {
    std::vector<std::string> all = keys;
    all.insert(all.end(), {std::string("adapter.kind=") + kind, std::string("train.precision=") + precision});
    const std::string name = std::string(kind) + precision;
    run(make_ppo_plan, name, "sums.jsonl", all);
    const std::vector<nlohmann::json> lines = metrics(name);
    EXPECT_LT(lines.back()["value_loss"].get<double>(), 0.5 * lines.front()["value_loss"].get<double>()) << name;
    EXPECT_TRUE(fs::exists(dir_ + "/" + name + "/latest/value_head.safetensors"));
  }
}

TEST_F(TuneRun, PaddingOfAnswersStaysWithinATableOfPositions) {
  // 64 positions; four rows of 64 tokens are mostly padding.
  run(make_grpo_plan, "gpt2", "sums.jsonl",
      {"model.path=" + base::source_dir() + "/tests/golden/models/gpt2", "train.micro_batch=4", "tune.prompts=2",
       "tune.group=4", "tune.max_new_tokens=6", "tune.rewards=length", "train.steps=2"});
  EXPECT_EQ(metrics("gpt2").size(), 2u);
}

TEST_F(TuneRun, WeightsInFewBitsDoNotTrain) {
  std::string error;
  try {
    run(make_sft_plan, "few_bits", "chats.jsonl",
        {"model.path=" + base::source_dir() + "/tests/golden/quant/awq-g128", "adapter.kind=full", "train.steps=1"});
  } catch (const base::Error& e) {
    error = e.what();
  }
  EXPECT_NE(error.find("awq-g128' is quantized"), std::string::npos) << error;
}

TEST_F(TuneRun, AReferenceIsAskedWhereAllOfTheModelTrains) {
  const std::vector<std::string> keys{"train.micro_batch=8", "tune.prompts=2", "tune.group=4", "tune.max_new_tokens=6",
                                      "tune.rewards=length", "train.steps=3",  "tune.kl=0.1",  "adapter.kind=full"};
  run(make_grpo_plan, "full", "sums.jsonl", keys);
  const std::vector<nlohmann::json> lines = metrics("full");
  EXPECT_EQ(lines.front()["kl"].get<double>(), 0) << "before the first step the model is its reference";
  EXPECT_GT(lines.back()["kl"].get<double>(), 0);
}

TEST_F(TuneRun, AStudentComesNearerToItsTeacher) {
  const std::string teacher = base::source_dir() + "/tests/golden/tune/models/reference";
  run(make_sft_plan, "student", "chats.jsonl",
      {"train.steps=40", "train.micro_batch=4", "tune.teacher=" + teacher, "tune.train_on=all", "adapter.kind=full"});
  const std::vector<nlohmann::json> lines = metrics("student");
  EXPECT_GT(lines.front()["divergence"].get<double>(), 0.01);
  EXPECT_LT(lines.back()["divergence"].get<double>(), 0.3 * lines.front()["divergence"].get<double>());
  EXPECT_NEAR(lines.back()["loss"].get<double>(), lines.back()["divergence"].get<double>(), 1e-5);
}

TEST_F(TuneRun, ABaseInFourBitsIsNearThePlainOneAndStaysAsItIs) {
  const std::vector<std::string> keys{"train.steps=4", "train.micro_batch=4"};
  auto with = [&](const std::string& kind) {
    std::vector<std::string> all = keys;
    all.push_back("adapter.kind=" + kind);
    return all;
  };
  const auto plain = run(make_sft_plan, "plain", "chats.jsonl", with("lora"));
  const auto four_bits = run(make_sft_plan, "four_bits", "chats.jsonl", with("qlora"));
  EXPECT_NE(plain.losses[0], four_bits.losses[0]) << "the base is rounded";
  EXPECT_NEAR(plain.losses[0], four_bits.losses[0], 0.1 * plain.losses[0]);
  EXPECT_LT(four_bits.losses.back(), four_bits.losses.front());
}

}  // namespace
}  // namespace sinter::tune
