#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "eval/sandbox/sandbox.h"
#include "tune/rewards/outside_program.h"
#include "tune/rewards/reward.h"

namespace sinter::tune {
namespace {

double score(const RewardOptions& options, std::string_view completion, std::string_view row = R"({"answer":"72"})",
             int64_t tokens = 0) {
  const RewardInput input{.prompt = "p", .completion = completion, .row = row, .tokens = tokens};
  return make_reward(options)->score(std::span(&input, 1))[0];
}
std::vector<double> ask(Reward& reward, size_t count) {
  const std::vector<RewardInput> inputs(count, {.prompt = "p", .completion = "c", .row = "{}"});
  return reward.score(inputs);
}
std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

TEST(Rewards, ExactAnswersMayHaveSpaceAround) {
  EXPECT_EQ(score({.kind = RewardKind::exact}, " 72\n"), 1);
  EXPECT_EQ(score({.kind = RewardKind::exact}, "72."), 0);
  const RewardOptions gsm8k{.kind = RewardKind::exact, .extract = "#### (.*)", .extract_field = "#### (.*)"};
  const char* row = R"({"answer":"48 + 24 = 72\n#### 72"})";
  EXPECT_EQ(score(gsm8k, "so it is\n#### 72", row), 1);
  EXPECT_EQ(score(gsm8k, "#### 72\nno, #### 71", row), 0);
  EXPECT_EQ(score(gsm8k, "72", row), 0);
  EXPECT_NE(error_of([&] { score({.kind = RewardKind::exact}, "72", R"({"question":1})"); }).find("'answer'"),
            std::string::npos);
}

TEST(Rewards, TheLastNumberCounts) {
  const RewardOptions numeric{.kind = RewardKind::numeric};
  EXPECT_EQ(score(numeric, "first 3, then $1,072.0", R"({"answer":1072})"), 1);
  EXPECT_EQ(score(numeric, "1072 or 3", R"({"answer":1072})"), 0);
  EXPECT_EQ(score(numeric, "-7", R"({"answer":"7"})"), 0);
  EXPECT_EQ(score(numeric, "none", R"({"answer":"7"})"), 0);
}

TEST(Rewards, MathAnswersAreEqualByValue) {
  const RewardOptions math{.kind = RewardKind::math};
  EXPECT_EQ(score(math, "thus \\boxed{\\frac{1}{2}}", R"({"answer":"\\frac12"})"), 1);
  EXPECT_EQ(score(math, "thus \\boxed{0.5}", R"({"answer":"\\frac{1}{3}"})"), 0);
}

TEST(Rewards, PatternsAreSearched) {
  const RewardOptions regex{.kind = RewardKind::regex, .pattern = "<think>.*</think>"};
  EXPECT_EQ(score(regex, "a <think>b</think>"), 1);
  EXPECT_EQ(score(regex, "a"), 0);
  EXPECT_NE(error_of([] { make_reward({.kind = RewardKind::regex}); }).find("pattern"), std::string::npos);
  EXPECT_THROW(make_reward({.kind = RewardKind::regex, .pattern = "("}), base::Error);
}

TEST(Rewards, SchemasTakeFieldsInAnyOrder) {
  const RewardOptions schema{
      .kind = RewardKind::schema,
      .schema = R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
                    "required":["name","age"],"additionalProperties":false})"};
  EXPECT_EQ(score(schema, R"({"age": 3, "name": "x"})"), 1);
  EXPECT_EQ(score(schema, R"( {"name":"x","age":3} )"), 1);
  EXPECT_EQ(score(schema, R"({"name":"x","age":"3"})"), 0);
  EXPECT_EQ(score(schema, R"({"name":"x"})"), 0);
  EXPECT_EQ(score(schema, "{" + std::string(100000, '[')), 0);
  EXPECT_THROW(make_reward({.kind = RewardKind::schema, .schema = R"({"type":"nothing"})"}), base::Error);
}

TEST(Rewards, LengthCostsNearTheEndOnly) {
  const RewardOptions length{.kind = RewardKind::length, .longest = 20, .cache = 8};
  EXPECT_EQ(score(length, "", "{}", 12), 0);
  EXPECT_EQ(score(length, "", "{}", 16), -0.5);
  EXPECT_EQ(score(length, "", "{}", 25), -1);
}

TEST(Rewards, CodeIsRunWithTheRowsTests) {
  if (!eval::sandbox_problem().empty()) GTEST_SKIP() << eval::sandbox_problem();
  const RewardOptions code{.kind = RewardKind::code, .field = "tests"};
  const char* row = R"({"tests":"assert add(2, 3) == 5"})";
  EXPECT_EQ(score(code, "Here:\n```python\ndef add(a, b):\n    return a + b\n```\n", row), 1);
  EXPECT_EQ(score(code, "def add(a, b):\n    return a - b\n", row), 0);
}

TEST(Rewards, AnOutsideProgramAnswersLineByLine) {
  OutsideProgram reward({"/bin/sh", "-c", "n=0; while read line; do n=$((n+1)); echo \"{\\\"reward\\\": $n}\"; done"},
                        30);
  EXPECT_EQ(ask(reward, 3), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(ask(reward, 1), (std::vector<double>{4}));  // it was kept
  EXPECT_TRUE(ask(reward, 0).empty());
}

TEST(Rewards, GarbageIsNoReward) {
  OutsideProgram reward({"/bin/sh", "-c", "while read line; do echo oops; done"}, 30);
  EXPECT_TRUE(std::isnan(ask(reward, 1)[0]));
  OutsideProgram null({"/bin/sh", "-c", "while read line; do echo null; done"}, 30);
  EXPECT_TRUE(std::isnan(ask(null, 1)[0]));
  OutsideProgram boolean({"/bin/sh", "-c", "while read line; do echo true; done"}, 30);
  EXPECT_EQ(ask(boolean, 1)[0], 1);
}

TEST(Rewards, AProgramThatEndsIsStartedAnew) {
  OutsideProgram reward({"/bin/sh", "-c", "read line; echo 1"}, 30);
  for (int i = 0; i < 5; ++i) {
    const std::vector<double> rewards = ask(reward, 2);
    EXPECT_EQ(rewards[0], 1);
    EXPECT_TRUE(std::isnan(rewards[1]));
  }
}

TEST(Rewards, AProgramThatNeverAnswersIsAnError) {
  OutsideProgram crash({"/bin/sh", "-c", "exit 3"}, 30);
  EXPECT_TRUE(std::isnan(ask(crash, 1)[0]));
  EXPECT_TRUE(std::isnan(ask(crash, 1)[0]));
  EXPECT_NE(error_of([&] { ask(crash, 1); }).find("answered nothing"), std::string::npos);
  OutsideProgram silent({"/bin/sh", "-c", "sleep 1000"}, 0.05);
  EXPECT_TRUE(std::isnan(ask(silent, 1)[0]));
  OutsideProgram missing({"/no/such/program"}, 1);
  EXPECT_NE(error_of([&] { ask(missing, 1); }).find("cannot start"), std::string::npos);
}

TEST(Rewards, WhatAProgramStartedEndsWithIt) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "reward_child";
  std::filesystem::remove(file);
  pid_t child = 0;
  {
    OutsideProgram parent({"/bin/sh", "-c", "sleep 1000 & echo $! > " + file.string() + "; echo; wait"}, 30);
    ask(parent, 1);
    std::ifstream(file) >> child;
  }
  ASSERT_GT(child, 0);
  const auto is_running = [&] {  // a zombie that nobody waits for counts as ended
    std::ifstream stat("/proc/" + std::to_string(child) + "/stat");
    std::string pid, name, state;
    return stat >> pid >> name >> state && state != "Z";
  };
  for (int tries = 0; is_running() && tries < 500; ++tries) ::usleep(10'000);
  EXPECT_FALSE(is_running());
}

TEST(Rewards, WhatARewardLacksIsNamedByItsKey) {
  for (const auto& [kind, key] :
       std::vector<std::pair<RewardKind, std::string>>{{RewardKind::regex, "tune.reward_pattern"},
                                                       {RewardKind::schema, "tune.reward_schema"},
                                                       {RewardKind::program, "tune.reward_command"}}) {
    std::string error;
    try {
      make_reward({.kind = kind});
    } catch (const base::Error& e) {
      error = e.what();
    }
    EXPECT_NE(error.find(key), std::string::npos) << error;
  }
}

TEST(Rewards, ManyLinesDoNotBlock) {
  OutsideProgram reward({"/bin/cat"}, 30);  // gives back what it gets: lines without a reward
  const std::string completion(10000, 'x');
  const std::vector<RewardInput> inputs(500, {.prompt = "p", .completion = completion, .row = "{}"});
  EXPECT_EQ(reward.score(inputs).size(), 500u);
}

}  // namespace
}  // namespace sinter::tune
