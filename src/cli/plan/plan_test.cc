// `sinter plan` as a user sees it: exit status, JSON, errors, files.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/plan/machine_use.h"
#include "cli/verbs.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct Outcome {
  int status = 0;
  std::string out, err;
};

// Runs `sinter plan <words>` in this process; words are split at spaces.
Outcome plan(const std::string& words) {
  std::vector<std::string> arguments{"sinter", "plan"};
  std::istringstream stream(words);
  for (std::string word; stream >> word;) arguments.push_back(word);
  std::vector<char*> argv;
  for (std::string& word : arguments) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.status = run(static_cast<int>(argv.size()), argv.data());
  std::fflush(stdout);
  outcome.out = ::testing::internal::GetCapturedStdout();
  outcome.err = ::testing::internal::GetCapturedStderr();
  return outcome;
}

json plan_json(const std::string& words) {
  Outcome outcome = plan(words + " --json");
  EXPECT_EQ(outcome.status, 0) << words << "\n" << outcome.err;
  return json::parse(outcome.out);
}

void expect_usage_error(const std::string& words, const std::string& part) {
  Outcome outcome = plan(words);
  EXPECT_EQ(outcome.status, 2) << words;
  EXPECT_NE(outcome.err.find(part), std::string::npos) << words << "\n" << outcome.err;
}

std::string temporary(const std::string& name) { return ::testing::TempDir() + "sinter_plan_" + name; }

class PlanVerb : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("SINTER_HARDWARE", "/dev/null", 1); }  // not the user's own table
};

TEST_F(PlanVerb, ModelAloneGivesExactParametersAndEveryConvention) {
  json out = plan_json("gpt2");
  EXPECT_EQ(out["parameters"]["total"], 124439808);
  EXPECT_EQ(out["parameter_formulas"][0]["value"], 123653376);
  EXPECT_EQ(out["flops_per_token"].size(), 11u);
  EXPECT_EQ(out["flops_per_token"]["6nd"]["total"], 6.0 * 124439808);
}

TEST_F(PlanVerb, TrainingPlanHasMemoryTimeAndCost) {
  json out = plan_json("llama-3.1-8b --gpus 64xH100 --tokens 1T --read 20 --write 10");
  EXPECT_TRUE(out["fits"]);
  double sum = 0;
  for (const json& part : out["memory"]["worst"]["parts"]) sum += part.get<double>();
  EXPECT_NEAR(sum / out["memory"]["worst"]["total"].get<double>(), 1, 1e-9);
  double seconds = 0;
  for (const json& part : out["time"]["by_cause"]) seconds += part.get<double>();
  EXPECT_NEAR(seconds / out["time"]["step_seconds"].get<double>(), 1, 1e-6);
  EXPECT_GT(out["run"]["money"], 0);
  EXPECT_GT(out["run"]["checkpoint_write_s"], 0);
}

TEST_F(PlanVerb, FiguresOfTheLiteratureComeOutOfTheCommands) {
  json llama = plan_json(
      "cost --parameters 405B --tokens 15.6T --gpus 16000xH100 --tflops 400 --price 2 --staff 50 --salary 500000");
  EXPECT_NEAR(llama["flops"].get<double>() / 3.79e25, 1, 0.001);
  EXPECT_NEAR(llama["gpu_hours"].get<double>() / 1e6, 26.3, 0.05);
  EXPECT_NEAR(llama["days"].get<double>(), 68.6, 0.05);
  json carbon = plan_json("cost --gpu-hours 1720320 --power 400 --grid llama-2");
  EXPECT_NEAR(carbon["co2_tonnes"].get<double>(), 291.42, 0.005);
  json batch = plan_json("batch --schedule 16M@0,32M@69B,64M@790B,128M@4700B --tokens 10400B");
  EXPECT_EQ(batch["steps"], 132469);
  json decode = plan_json("inference llama-2-7b --gpus A100-80GB --achieved 1397.31 --prompt 5 --output 195 --tp 1");
  EXPECT_NEAR(decode["tp"][0]["decode_expected"]["tokens_per_s"].get<double>(), 104.9, 0.05);
  json scaling = plan_json("scaling --flops 5.76e23");
  EXPECT_NEAR(scaling["laws"]["chinchilla-20"]["tokens_per_parameter"].get<double>(), 20, 1e-9);
}

TEST_F(PlanVerb, EveryBudgetMeansTheSame) {
  double flops = plan_json("scaling --days 10 --gpus 8xH100 --mfu 0.5")["flops"];
  EXPECT_NEAR(plan_json("scaling --gpu-hours 1920 --gpus 8xH100 --mfu 0.5")["flops"].get<double>() / flops, 1, 1e-12);
  EXPECT_NEAR(plan_json("scaling --money 3840 --price 2 --gpus 8xH100 --mfu 0.5")["flops"].get<double>() / flops, 1,
              1e-12);
}

TEST_F(PlanVerb, NonsenseNamesTheNearestValidChoice) {
  expect_usage_error("lama-3.1-8b", "llama-3.1-8b");
  expect_usage_error("llama-3.1-8b --gpus 0xH100", "the least is 1");
  expect_usage_error("inference llama-3.1-8b --gpus H100 --context 100", "more than --context 100");
  expect_usage_error("inference gpt2 --gpus H100 --prompt 100000", "more than the model's 1024");
  expect_usage_error("inference llama-3.1-8b --gpus 8xH100 --tp 32", "--tp");
  expect_usage_error("cost gpt2 --tokens 1B --convention palm --seq-len 4096", "--seq-len 4096");
  expect_usage_error("llama-3.1-8b --gpus 8xH101", "did you mean 'H100");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --tp 3", "nearest that does is 2");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --nodes 3", "nearest that does is");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --format bf61", "bf16");
  expect_usage_error("llama-3.1-8b --gpuss 8xH100", "--gpus");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --tokens many", "expected a positive number");
  expect_usage_error("scaling --flops 1e24 --law epcoh", "epoch");
  expect_usage_error("scaling --flops 1e24 --days 3", "one budget");
  expect_usage_error("cost gpt2 --tokens 1B --mfu 3", "(0, 1]");
  expect_usage_error("cost gpt2 --tokens 1B --grid wrold", "world");
  expect_usage_error("inference llama-2-7b --weights int5", "did you mean");
  expect_usage_error("inference llama-2-7b --context 9000", "4096");
  expect_usage_error("batch --loss 0", "more than 0");
  expect_usage_error("searh gpt2", "did you mean `sinter plan search`?");
  expect_usage_error("model", "did you mean `sinter plan models`?");
  expect_usage_error("gpt2 --gpus this-machine", "run `sinter plan --measure`");
  expect_usage_error("--measure --check-only --name ours", "'/dev/null' has no device 'ours'; leave out --check-only");
  expect_usage_error("--measure --check-only --hardware /no/such.toml", "no hardware file '/no/such.toml'");
  expect_usage_error("", "name a model");
}

// Zero, a negative number, NaN and infinity are refused by the option's name, never taken for "not given".
TEST_F(PlanVerb, NumbersThatMeanNothingAreRefusedByTheOptionsName) {
  for (const char* option : {"--tp", "--pp", "--cp", "--ep", "--shard", "--micro-batch", "--batch", "--seq-len",
                             "--nodes", "--rails", "--read", "--write", "--mtbf", "--pue"}) {
    for (const char* value : {"0", "-2"}) {
      expect_usage_error(std::string("llama-3.1-8b --gpus 8xH100 ") + option + " " + value, option);
    }
  }
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --price nan", "--price");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --mtbf inf", "--mtbf");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --zero -1", "--zero");
  expect_usage_error("search llama-3.1-8b --max-tp 0", "--max-tp");
  expect_usage_error("search llama-3.1-8b --top 0", "--top: 0 given; expected 1 or more");
  expect_usage_error("llama-3.1-8b --grid -1", "the least is 0");
  expect_usage_error("search llama-3.1-8b --hours nan", "--hours");
  expect_usage_error("search llama-3.1-8b --memory-share nan", "--memory-share");
  expect_usage_error("search llama-3.1-8b --job a;b", "--job");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --restart-seconds -1", "--restart-seconds");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --jitter nan", "--jitter");
  expect_usage_error("scaling --loss -1", "--loss");
  expect_usage_error("cost llama-3.1-8b --tokens 1T --years -1", "--years");
  expect_usage_error("inference llama-2-7b --batch nan", "--batch");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --micro-batch 9223372036854775807", "--micro-batch");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --straggler 0:0:inf", "the factor is inf");
  EXPECT_EQ(plan("llama-3.1-8b --gpus 8xH100 --price 0").status, 0);
}

TEST_F(PlanVerb, ALayoutThatCannotBeSimulatedIsRefusedWithTheNearestThatCan) {
  expect_usage_error("simulate llama-3.1-8b --pp 4 --straggler 2:0:1.5", "pipelines 0 to 1 of stages 0 to 3");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --interleave 2 --batch 6", "the nearest that fits is 8");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --schedule interleaved --batch 6", "the nearest that fits is 8");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --interleave 50", "use at most interleave 8");
  expect_usage_error("simulate llama-3.1-8b --pp 4 --interleave 2 --schedule 1f1b", "needs the schedule 'interleaved'");
  expect_usage_error("simulate llama-3.1-8b --cp 8 --seq-len 100", "not a multiple of 16");
  EXPECT_EQ(plan("simulate llama-3.1-8b --pp 4 --interleave 2 --batch 8").status, 0);
}

// Such a step would take minutes and all memory.
TEST_F(PlanVerb, AStepTooLongToSimulateIsRefusedWithTheLongestThatIsNot) {
  const std::string layout = "simulate llama-3.1-8b --gpus 16xH100 --pp 4 ";
  expect_usage_error(layout + "--batch 100000000", "the most is --batch 1000000 (250000 micro-batches)");
  expect_usage_error(layout + "--interleave 8 --batch 100000000", "the most is --batch 124992 (31248 micro-batches)");
  expect_usage_error("simulate llama-3.1-8b --gpus 10000000xH100 --pp 32 --jitter 0.1",
                     "(2 micro-batches), or leave out --jitter");
  expect_usage_error("simulate llama-3.1-8b --gpus 10000000xH100 --pp 4 --interleave 8 --jitter 0.1", "fewer devices");
  EXPECT_EQ(plan(layout + "--batch 4000").status, 0);
}

TEST_F(PlanVerb, ABatchWithoutRoomHasNoRates) {
  json out = plan_json("inference llama-3.1-8b --batch 500")["tp"];
  EXPECT_EQ(out[0]["max_sequences"], 385);
  EXPECT_FALSE(out[0]["batch_fits"]);
  EXPECT_FALSE(out[0].contains("dollars_per_million_output"));
  EXPECT_TRUE(out[0].contains("decode_bound"));
  EXPECT_TRUE(out[1]["batch_fits"]);  // of two devices
  EXPECT_GT(out[1]["output_tokens_per_s"], 0);
  Outcome text = plan("inference llama-3.1-8b --batch 1e9");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("--batch 1000000000 DOES NOT FIT"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("385 at tp 1"), std::string::npos) << text.out;
  EXPECT_EQ(text.out.find("Cheapest"), std::string::npos) << text.out;
}

TEST_F(PlanVerb, AFormatTheDeviceHasNoUnitForIsTold) {
  EXPECT_NE(plan("llama-3.2-1b --gpus 8xV100").out.find("no unit for bf16: products run as fp32"), std::string::npos);
  EXPECT_EQ(plan_json("llama-3.2-1b --gpus 8xV100 --format fp8")["computed_in"], "fp16");
  EXPECT_EQ(plan("llama-3.2-1b --gpus 8xH100").out.find("no unit for"), std::string::npos);
}

// A wish that no layout can meet is an error, not a plan of something else.
TEST_F(PlanVerb, WishesThatCannotBeMetAreErrors) {
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --ep 2", "no experts");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --shard 3", "nearest that does is");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --batch 64 --micro-batch 7", "nearest that does is 8");
  expect_usage_error("llama-3.1-8b --gpus 8xH100 --pp 9000000000000000000 --cp 9000000000000000000", "does not divide");
  EXPECT_EQ(plan("llama-3.1-8b --gpus 8xH100 --micro-batch 3").status, 0);  // the batch follows
}

TEST_F(PlanVerb, PageAndExplanationHoldTheNumbers) {
  std::string page = temporary("page.html");
  Outcome outcome = plan("llama-3.1-70b --gpus 64xH100 --pp 4 --explain --html " + page);
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("(p - 1) / (v m)"), std::string::npos);
  std::stringstream text;
  text << std::ifstream(page).rdbuf();
  for (const char* part :
       {"Memory by part against sequence length", "Layouts", "Timeline", "How each number", "<svg", "</html>"}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part;
  }
  EXPECT_EQ(text.str().find("<script"), std::string::npos);
  std::filesystem::remove(page);
}

TEST_F(PlanVerb, SweepFitWritesItsPicture) {
  std::string sweep = temporary("sweep.csv"), picture = temporary("sweep.svg");
  {
    std::ofstream file(sweep);
    file << "params,tokens,loss\n";
    for (double flops : {1e18, 1e19, 1e20}) {
      for (double n : {2e7, 6e7, 2e8, 6e8, 2e9}) {
        double d = flops / (6 * n);
        file << n << ',' << d << ',' << 1.8 + 480 * std::pow(n, -0.35) + 2000 * std::pow(d, -0.365) << '\n';
      }
    }
  }
  json out = plan_json("fit " + sweep + " --resamples 10 --flops 1e21 --svg " + picture);
  EXPECT_NEAR(out["parametric"]["alpha"]["value"].get<double>(), 0.35, 0.01);
  EXPECT_TRUE(std::filesystem::exists(picture));
  std::filesystem::remove(sweep);
  std::filesystem::remove(picture);
}

TEST(MachineUse, WorkOfOtherProgramsIsToldFromOurs) {
  // 10,000 ticks in all, 6,000 of them idle or waiting; of the 4,000 others ours were 3,000.
  const char *before = "cpu  100 0 50 1000 0 0 0 0 0 0", *after = "cpu  3600 100 350 6000 1000 50 50 0 3000 0";
  EXPECT_NEAR(share_of_others(before, after, 3000), 0.1, 1e-9);
  EXPECT_EQ(share_of_others(before, after, 5000), 0);
  EXPECT_EQ(share_of_others("", "", 10), 0);
  EXPECT_EQ(share_of_others(before, before, 0), 0);
}

TEST(MachineUse, ABusyMachineIsToldAndAQuietOneIsNot) {
  EXPECT_EQ(why_not_quiet(0.05, 0.08), "");
  EXPECT_NE(why_not_quiet(-0.2, 0).find("20 % faster"), std::string::npos);
  EXPECT_NE(why_not_quiet(0, 0.5).find("50 % of the machine"), std::string::npos);
}

TEST_F(PlanVerb, ListsAreComplete) {
  EXPECT_GE(plan_json("devices")["devices"].size(), 20u);
  EXPECT_GE(plan_json("models").size(), 20u);
}

}  // namespace
}  // namespace sinter::cli
