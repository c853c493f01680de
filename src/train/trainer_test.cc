// Whole small runs: what must not change the result does not, and a resumed run is the unbroken one.
#include "train/trainer.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "base/threads.h"
#include "data/token_shard.h"
#include "train/checkpoint_writer.h"
#include "train/file_size_limit.h"
#include "train/optimizer.h"
#include "train/run_plan.h"
#include "train/trainer_fixture.h"

namespace sinter::train {
namespace {

TEST_F(TrainerTest, TheLossFallsAndTheFolderIsAModel) {
  const TrainResult result = train("run", {"train.steps=40", "optimizer.lr=1e-2"});
  EXPECT_EQ(result.steps, 40);
  EXPECT_EQ(result.losses.size(), 40u);
  EXPECT_NEAR(result.losses.front(), std::log(48.0), 0.5);
  EXPECT_LT(result.losses.back(), 2.5);
  ASSERT_TRUE(result.validation_loss);
  EXPECT_LT(*result.validation_loss, 2.8);
  EXPECT_TRUE(fs::exists(dir_ + "/run/latest/config.json"));
}

TEST_F(TrainerTest, AResumedRunEqualsTheUnbrokenOneBitForBit) {
  for (const char* kind : {"adamw", "muon", "sgd"}) {
    const std::string optimizer = std::string("optimizer.kind=") + kind, whole = std::string("whole_") + kind,
                      parts = std::string("parts_") + kind;
    train(whole, {optimizer, "train.batch_tokens=384", "guard.on_outlier=skip", "guard.window=8"});
    for (int64_t steps : {2, 5, 6}) {
      // A run that ends early must follow the schedule of the long one: a constant rate does.
      train(parts, {optimizer, "train.batch_tokens=384", "guard.on_outlier=skip", "guard.window=8",
                    "schedule.kind=constant", "train.steps=" + std::to_string(steps)});
    }
    train(whole + "_constant",
          {optimizer, "train.batch_tokens=384", "guard.on_outlier=skip", "guard.window=8", "schedule.kind=constant"});
    EXPECT_EQ(weights(parts), weights(whole + "_constant")) << kind;
    EXPECT_EQ(state(parts), state(whole + "_constant")) << kind;
    EXPECT_NE(weights(parts), weights(whole)) << kind;
    EXPECT_EQ(index(parts)["noise_scale"], index(whole + "_constant")["noise_scale"]) << kind;
    EXPECT_NE(index(parts)["noise_scale"][2], 0) << kind;
    const std::vector<nlohmann::json> lines = metrics(parts), expected = metrics(whole + "_constant");
    ASSERT_EQ(lines.size(), expected.size());
    for (size_t i = 0; i < lines.size(); ++i) {
      EXPECT_EQ(lines[i]["tokens"], 384 * (i + 1));
      for (const char* key : {"step", "tokens", "loss", "grad_norm", "lr"})
        EXPECT_EQ(lines[i][key], expected[i][key]) << key;
    }
  }
}

TEST_F(TrainerTest, CheckpointsWrittenBehindTheTrainingAreThoseItWouldWaitFor) {
  for (const char* background : {"true", "false"}) {
    train(background, {"checkpoint.every=1", "checkpoint.keep=9", std::string("checkpoint.background=") + background,
                       "optimizer.states=bf16", "train.precision=bf16"});
  }
  for (int step = 1; step <= 6; ++step) {
    const std::string name = "/step-0000000" + std::to_string(step);
    for (const char* file : {"/model.safetensors", "/config.json", "/state/rank-00000.safetensors"})
      EXPECT_EQ(base::read_file(dir_ + "/true" + name + file), base::read_file(dir_ + "/false" + name + file)) << name;
  }
  const auto waited = metrics("false");
  EXPECT_FALSE(waited[0].contains("checkpoint_seconds"));
  for (size_t i = 1; i < waited.size(); ++i) EXPECT_GT(waited[i].value("checkpoint_seconds", 0.0), 0.0) << i;
}

TEST_F(TrainerTest, AFullDiskCostsCheckpointsOnTheWayAndFailsTheRunAtItsEnd) {
  for (const char* background : {"true", "false"}) {
    const std::vector<std::string> overrides{"checkpoint.every=2", std::string("checkpoint.background=") + background};
    try {
      const FileSizeLimit limit(20000);  // the metrics fit, a state does not
      train(background, overrides);
      FAIL() << "the last checkpoint cannot have been written";
    } catch (const base::Error& e) {
      const std::string error = e.what();
      EXPECT_NE(error.find("the last checkpoint, of step 6"), std::string::npos) << error;
      EXPECT_NE(error.find("rank-00000.safetensors"), std::string::npos) << error;
      EXPECT_NE(error.find("File too large"), std::string::npos) << error;
    }
    EXPECT_EQ(metrics(background).size(), 6u) << "the run went on after the first failure";
    EXPECT_FALSE(fs::exists(dir_ + "/" + background + "/latest"));
    for (const auto& entry : fs::directory_iterator(dir_ + "/" + background))
      EXPECT_FALSE(entry.path().filename().string().starts_with("step-")) << entry.path();
    train(background, overrides);
    train("whole");
    EXPECT_EQ(weights(background), weights("whole"));
  }
}

TEST_F(TrainerTest, RecomputeModesAreBitEqualInFp32) {
  for (const char* family : {"llama", "gpt2"}) {
    auto run = [&](const std::string& mode) {
      std::vector<std::string> overrides{"train.recompute=" + mode};
      if (family == std::string("gpt2")) overrides.insert(overrides.end(), {"model.family=gpt2", "model.kv_heads=0"});
      train(family + mode, overrides);
      return weights(family + mode);
    };
    const auto none = run("none");
    EXPECT_EQ(none, run("selective")) << family;
    EXPECT_EQ(none, run("full")) << family;
  }
}

// In 16 bits a plain MLP keeps the slopes of its activation, or its input where backward applies the activation again.
TEST_F(TrainerTest, RecomputeModesAgreeInBf16) {
  auto run = [&](const std::string& mode) {
    train(mode, {"model.family=gpt2", "model.kv_heads=0", "train.precision=bf16", "train.recompute=" + mode});
  };
  run("none"), run("selective"), run("full");
  EXPECT_EQ(weights("none"), weights("full"));
  auto kept = metrics("none"), again = metrics("selective");
  ASSERT_EQ(kept.size(), again.size());
  for (size_t i = 0; i < kept.size(); ++i)
    EXPECT_NEAR(kept[i]["loss"].get<double>(), again[i]["loss"].get<double>(), 5e-3) << "step " << i;
}

TEST_F(TrainerTest, ThreadCountsAreBitEqual) {
  for (int threads : {1, 2, 3}) train("t" + std::to_string(threads), {"train.threads=" + std::to_string(threads)});
  EXPECT_EQ(weights("t1"), weights("t2"));
  EXPECT_EQ(weights("t1"), weights("t3"));
}

TEST_F(TrainerTest, AccumulationOfEightEqualsOneBatch) {
  const std::vector<std::vector<std::string>> variants{
      {}, {"model.family=gpt2", "model.kv_heads=0", "model.dropout=0.2"}};  // the same is dropped too
  for (const std::vector<std::string>& variant : variants) {
    auto losses = [&](const std::string& micro_batch) {
      std::vector<std::string> overrides = variant;
      overrides.push_back("train.micro_batch=" + micro_batch);
      train("m" + micro_batch + std::to_string(variant.size()), overrides);
      return metrics("m" + micro_batch + std::to_string(variant.size()));
    };
    const auto one = losses("8"), eight = losses("1");
    ASSERT_EQ(one.size(), eight.size());
    for (size_t i = 0; i < one.size(); ++i) {
      const double a = one[i]["loss"], b = eight[i]["loss"];
      EXPECT_NEAR(a, b, 1e-6 * a) << "step " << i + 1 << " of variant " << variant.size();
    }
  }
}

TEST_F(TrainerTest, FirstGradientsAgreeBetweenAccumulations) {
  std::vector<std::vector<float>> gradients;
  for (const char* micro_batch : {"8", "1"}) {
    RunPlan plan = make_run_plan(recipe("g", {std::string("train.micro_batch=") + micro_batch}), mesh_);
    models::ParameterStore store(plan.model, {.trains = true});
    models::Transformer transformer(plan.model, store);
    store.initialize(1);
    StepRunner runner(transformer, plan.shape, plan.memory, mesh_);
    runner.run(plan.loader->step(0), 0);
    gradients.push_back(core::to_host<float>(store.grad()));
  }
  double difference = 0, norm = 0;
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    difference += std::pow(double(gradients[0][i]) - gradients[1][i], 2);
    norm += std::pow(double(gradients[0][i]), 2);
  }
  EXPECT_GT(norm, 0);
  EXPECT_LT(std::sqrt(difference / norm), 1e-6);
}

TEST_F(TrainerTest, ThePlanNamesTheMemoryTheRunThenHolds) {
  for (const char* mode : {"none", "selective", "full"}) {
    const std::string every = mode == std::string("selective") ? "0" : "2";  // with a copy for checkpoints and without
    const RunPlan plan = make_run_plan(
        recipe("m", {std::string("train.recompute=") + mode, "checkpoint.every=" + every, "checkpoint.minutes=0"}),
        mesh_);
    EXPECT_EQ(plan.checkpoint_copy_bytes > 0, every == "2");
    core::DeviceRuntime& device = core::runtime({});
    const size_t before = device.allocator().stats().current_bytes;
    device.allocator().reset_peak();
    models::ParameterStore store(plan.model, {.trains = true});
    models::Transformer transformer(plan.model, store);
    Optimizer optimizer(plan.recipe.optimizer, store);
    StepRunner runner(transformer, plan.shape, plan.memory, mesh_);
    const CheckpointFolder folder(dir_ + "/m", 2, *self_);
    CheckpointWriter writer(folder, *self_);
    if (plan.checkpoint_copy_bytes > 0) writer.reserve(state_tensors(store, optimizer), plan.device, true);
    runner.run(plan.loader->step(0), 0);
    runner.evaluate(plan.loader->validation());
    const auto held = static_cast<double>(device.allocator().stats().peak_bytes - before);
    EXPECT_NEAR(held, static_cast<double>(plan.memory_bytes()), 0.03 * held) << mode;
    EXPECT_EQ(runner.arena_peak_bytes() > 0, true);
  }
}

TEST_F(TrainerTest, FamiliesExpertsExtraHeadsAndDropoutTrainAndResume) {
  const std::vector<std::vector<std::string>> variants{
      {"model.family=gpt2", "model.kv_heads=0", "model.dropout=0.1"},
      {"model.family=qwen3_moe", "model.experts=4", "train.recompute=full"},
      {"model.mtp_heads=1", "train.recompute=selective"},
      {"train.precision=bf16", "optimizer.kind=muon", "optimizer.muon_lr=0.01"},
      {"optimizer.states=bf16"},
      {"train.precision=bf16", "train.gradients=bf16", "train.batch_tokens=384"},
      {"train.precision=bf16", "train.gradients=bf16", "optimizer.kind=muon", "model.family=gpt2", "model.kv_heads=0"},
      {"train.precision=bf16", "optimizer.states=bf16", "optimizer.kind=muon", "optimizer.muon_lr=0.01"},
      {"train.precision=fp16", "train.loss_scale=1024"},
      {"train.precision=bf16", "train.ramp_from_tokens=192", "train.ramp_steps=3", "train.batch_tokens=768"}};
  for (size_t v = 0; v < variants.size(); ++v) {
    std::vector<std::string> overrides = variants[v];
    overrides.insert(overrides.end(), {"schedule.kind=constant", "train.steps=4"});
    const std::string name = "v" + std::to_string(v);
    const TrainResult result = train(name, overrides);
    EXPECT_LT(result.losses.back(), result.losses.front()) << name;
    overrides.back() = "train.steps=2";
    train(name + "r", overrides);
    overrides.back() = "train.steps=4";
    train(name + "r", overrides);
    EXPECT_EQ(weights(name), weights(name + "r")) << name;
  }
}

TEST_F(TrainerTest, Fp16FindsItsLossScaleAndFollowsFp32) {
  train("f32", {"train.steps=12"});
  // Gradients times 2^24 overflow a half: the first steps are skipped until the scale fits.
  const TrainResult half = train("f16", {"train.steps=24", "train.precision=fp16", "train.loss_scale=16777216"});
  const auto lines = metrics("f16");
  size_t skipped = 0;
  for (const auto& line : lines) skipped += line.contains("skipped") ? 1 : 0;
  EXPECT_GT(skipped, 0u);
  EXPECT_LT(skipped, 13u);
  EXPECT_LT(lines.back()["loss_scale"].get<double>(), 16777216.0);
  EXPECT_LT(half.losses.back(), half.losses.front());
  // Skipped steps leave no trace but their batch: the losses before the first update are the start's.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), metrics("f32")[0]["loss"].get<double>(), 2e-3);
  train("f16_small", {"train.steps=12", "train.precision=fp16", "train.loss_scale=1024"});
  const auto f16 = metrics("f16_small"), f32 = metrics("f32");
  for (size_t i = 0; i < f32.size(); ++i) {
    const double a = f16[i]["loss"], b = f32[i]["loss"];
    EXPECT_NEAR(a, b, 0.01 * b) << "step " << i + 1;
  }
}

TEST_F(TrainerTest, TheFirstWeightsAreKeptWhenAskedFor) {
  train("i", {"checkpoint.initial=true", "checkpoint.every=2", "checkpoint.keep=1", "checkpoint.export=f32",
              "train.precision=bf16"});
  EXPECT_TRUE(fs::exists(dir_ + "/i/step-00000000/model.safetensors"));
  EXPECT_FALSE(fs::exists(dir_ + "/i/step-00000002"));
  // In f32: twice the bytes of bf16.
  train("j", {"train.precision=bf16"});
  EXPECT_NEAR(double(weights("i").size()) / double(weights("j").size()), 2.0, 0.1);
}

TEST_F(TrainerTest, ShortOptimizerStatesHalveTheirMemoryAndStayClose) {
  const RunPlan full = make_run_plan(recipe("p"), mesh_),
                half = make_run_plan(recipe("p", {"optimizer.states=bf16"}), mesh_);
  auto optimizer_bytes = [](const RunPlan& plan) {
    for (const MemoryRow& row : plan.memory_rows) {
      if (row.what.starts_with("optimizer")) return row.bytes;
    }
    return size_t{0};
  };
  EXPECT_EQ(optimizer_bytes(full), 2 * optimizer_bytes(half));
  const TrainResult a = train("full", {"train.steps=20"}),
                    b = train("half", {"train.steps=20", "optimizer.states=bf16"});
  EXPECT_NEAR(a.losses.back(), b.losses.back(), 0.01 * a.losses.back());
  EXPECT_NE(a.losses.back(), b.losses.back());
}

TEST_F(TrainerTest, DocumentsDoNotSeeEachOther) {
  // Two texts that differ in a document of one token, which predicts nothing: only who sees it can tell them apart.
  for (int32_t first : {5, 9}) {
    data::TokenShardWriter writer(dir_ + "/" + std::to_string(first) + ".tok", 48, 0);
    writer.add_document(std::vector<int32_t>{first});
    writer.add_document(std::vector<int32_t>{1, 8, 43, 30, 12, 16, 36, 42, 25, 34, 32});
    writer.commit();
  }
  auto validation_loss = [&](const std::string& shard, const std::string& packing) {
    return *train(packing + shard,
                  {"train.steps=1", "data.packing=" + packing, "data.validation='" + dir_ + "/" + shard + ".tok'"})
                .validation_loss;
  };
  EXPECT_EQ(validation_loss("5", "documents"), validation_loss("9", "documents"));
  EXPECT_NE(validation_loss("5", "stream"), validation_loss("9", "stream"));
}

TEST_F(TrainerTest, AnExplodingRunStopsWithItsReason) {
  const TrainResult result = train(
      "boom", {"optimizer.lr=1e14", "optimizer.clip=0", "guard.max_skips=2", "train.steps=20", "optimizer.kind=sgd"});
  EXPECT_NE(result.stopped.find("diverged"), std::string::npos);
  EXPECT_LT(result.steps, 20);
  EXPECT_EQ(result.checkpoint, "");  // nothing was worth saving
}

TEST_F(TrainerTest, AnExplodingRunKeepsTheCheckpointsFromBefore) {
  train("boom", {"train.steps=4", "checkpoint.every=1", "checkpoint.keep=2"});
  const std::string good = state("boom");
  const TrainResult result = train("boom", {"optimizer.lr=1e14", "optimizer.clip=0", "guard.max_skips=4",
                                            "train.steps=20", "checkpoint.every=1", "checkpoint.keep=2"});
  EXPECT_NE(result.stopped.find("diverged"), std::string::npos);
  EXPECT_GT(result.steps, 5);
  EXPECT_EQ(result.checkpoint, dir_ + "/boom/latest");
  // The step that ruined the weights may be there, none of those after it.
  EXPECT_LE(index("boom")["step"], 5);
  EXPECT_TRUE(fs::exists(dir_ + "/boom/step-00000004"));
  EXPECT_FALSE(fs::exists(dir_ + "/boom/step-00000006"));
}

TEST_F(TrainerTest, ARunThatGoesBackKeepsWhatItWritesAndTheLaterSteps) {
  train("back", {"checkpoint.every=1", "checkpoint.keep=3"});  // leaves 4, 5 and 6
  const std::string from = "checkpoint.resume='" + dir_ + "/back/step-00000004'";
  train("back", {from, "train.steps=5", "checkpoint.keep=1", "optimizer.lr=1e-3"});
  EXPECT_EQ(index("back")["step"], 5);
  EXPECT_FALSE(fs::exists(dir_ + "/back/step-00000004"));
  EXPECT_TRUE(fs::exists(dir_ + "/back/step-00000006/state/index.json"));
}

TEST_F(TrainerTest, ARunThatTurnsToF16BeginsWithTheRecipesLossScale) {
  train("run", {"train.precision=bf16", "train.steps=2"});
  train("run", {"train.precision=fp16", "train.steps=3", "train.loss_scale=1024"});
  EXPECT_EQ(index("run")["loss_scale"][0], 1024);
  train("run", {"train.precision=fp16", "train.steps=4", "train.loss_scale=4096"});  // it has its own by now
  EXPECT_EQ(index("run")["loss_scale"][0], 1024);
}

TEST_F(TrainerTest, SamplesThatFailDoNotEndARun) {
  base::write_file_atomic(dir_ + "/a.txt", "Once upon a time there was a fox. The fox ran and ran. ");
  const std::string tokenizer =
      std::string("data.tokenizer='") + base::source_dir() + "/tests/golden/tokenizer/small.model'";
  int asked = 0;
  TrainHooks hooks;
  hooks.sample = [&](const models::Transformer&, const tokenizer::Tokenizer&, int64_t) {
    ++asked;
    base::fail("nothing to say");
  };
  const spec::Recipe spoken =
      recipe("run", {"data.sources='" + dir_ + "/a.txt'", "data.validation=[]", tokenizer, "log.sample_every=2",
                     "data.sequence_length=8", "train.micro_batch=1", "train.batch_tokens=8"});
  EXPECT_EQ(Trainer(spoken, *self_).run(hooks).steps, 6);
  EXPECT_EQ(asked, 3);
}

TEST_F(TrainerTest, TasksAreTriedAndTheirScoresAreMetrics) {
  base::write_file_atomic(dir_ + "/a.txt", "Once upon a time there was a fox. The fox ran and ran. ");
  const std::string tokenizer =
      std::string("data.tokenizer='") + base::source_dir() + "/tests/golden/tokenizer/small.model'";
  std::vector<int64_t> steps;
  TrainHooks hooks;
  hooks.evaluate = [&](const models::Transformer&, const tokenizer::Tokenizer&, comm::Communicator&, int64_t step) {
    steps.push_back(step);
    if (step == 4) base::fail("no answer");  // which does not end a run
    return std::vector<std::pair<std::string, double>>{{"mine/acc", 0.25 * static_cast<double>(step)}};
  };
  const std::vector<std::string> keys{"data.sources='" + dir_ + "/a.txt'",
                                      "data.validation=[]",
                                      tokenizer,
                                      "log.every=6",
                                      "data.sequence_length=8",
                                      "train.micro_batch=1",
                                      "train.batch_tokens=8"};
  std::vector<std::string> tried = keys;
  tried.insert(tried.end(), {"eval.tasks='mine'", "eval.every=2"});
  EXPECT_EQ(Trainer(recipe("run", tried), *self_).run(hooks).steps, 6);
  EXPECT_EQ(steps, (std::vector<int64_t>{2, 4, 6}));
  const std::vector<nlohmann::json> lines = metrics("run");  // a step with a score has a line
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["mine/acc"], 0.5);
  EXPECT_EQ(lines[1]["mine/acc"], 1.5);
  Trainer(recipe("plain", keys), *self_).run();
  EXPECT_EQ(weights("run"), weights("plain"));
  EXPECT_THROW(recipe("run", {"eval.every=2"}), base::UsageError);  // no tasks
}

TEST_F(TrainerTest, ARunEndsWhenTheValidationLossNoLongerFalls) {
  // So low a rate changes nothing: every validation has the first one's loss.
  const std::vector<std::string> keys{"optimizer.lr=1e-30", "log.eval_every=2", "train.patience=2", "checkpoint.keep=1",
                                      "schedule.kind=constant"};
  std::vector<std::string> first = keys, rest = keys;
  first.push_back("train.steps=4");
  rest.push_back("train.steps=40");
  const TrainResult begun = train("run", first);
  EXPECT_FALSE(begun.is_early);
  for (int again = 0; again < 2; ++again) {  // resumed it counts on; after the end it stays ended
    const TrainResult ended = train("run", rest);
    EXPECT_TRUE(ended.is_early);
    EXPECT_EQ(ended.steps, 6);
    EXPECT_NE(ended.stopped.find("step 2"), std::string::npos) << ended.stopped;
    EXPECT_EQ(fs::read_symlink(dir_ + "/run/best").string(), "step-00000002");
    EXPECT_EQ(fs::read_symlink(dir_ + "/run/latest").string(), "step-00000006");
    EXPECT_TRUE(fs::exists(dir_ + "/run/best/config.json"));  // keep = 1 does not count it
    EXPECT_EQ(metrics("run").size(), 6u);
  }
  // A loss that falls goes on to the last step, and the best is the newest of the falling ones.
  const TrainResult falling =
      train("falling", {"train.steps=10", "optimizer.lr=1e-3", "log.eval_every=5", "train.patience=1"});
  EXPECT_FALSE(falling.is_early);
  EXPECT_EQ(fs::read_symlink(dir_ + "/falling/best").string(), "step-00000010");
  EXPECT_THROW(recipe("x", {"train.patience=1"}), base::UsageError);  // without validations on the way
}

TEST_F(TrainerTest, AModelFromAnotherFolderIsWrittenToItsOwnEvenWithoutAStep) {
  train("first");
  const TrainResult result = train("second", {"checkpoint.resume='" + dir_ + "/first/latest'"});
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(weights("second"), weights("first"));
}

}  // namespace
}  // namespace sinter::train
