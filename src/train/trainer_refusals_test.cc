// What a run refuses, with which words, and what it leaves behind: nothing.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "train/checkpoint_writer.h"
#include "train/run_lock.h"
#include "train/run_plan.h"
#include "train/trainer.h"
#include "train/trainer_fixture.h"

namespace sinter::train {
namespace {

TEST_F(TrainerTest, CudaGraphsAreRefusedWithoutAGpuOnlyWhenAskedFor) {
  EXPECT_FALSE(make_run_plan(recipe("auto", {"train.cuda_graphs=auto"}), mesh_).shape.graphs);
  try {
    make_run_plan(recipe("on", {"train.cuda_graphs=on"}), mesh_);
    FAIL() << "not refused";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("train.device is 'cpu'"), std::string::npos) << e.what();
  }
}

TEST_F(TrainerTest, MistakesAreNamedBeforeAnythingRuns) {
  auto error = [&](const std::vector<std::string>& overrides) -> std::string {
    try {
      train("e", overrides);
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error({"train.batch_tokens=200"}).find("train.batch_tokens 200"), std::string::npos);
  EXPECT_NE(error({"data.sources=nowhere.tok"}).find("nowhere.tok"), std::string::npos);
  EXPECT_NE(error({"model.vocab_size=20"}).find("vocab"), std::string::npos);
  EXPECT_NE(error({"parallel.dp=2"}).find("parallel.dp"), std::string::npos);
  EXPECT_NE(error({"train.precision=fp8"}).find("use precision = \"bf16\""), std::string::npos);
  EXPECT_NE(error({"checkpoint.resume=elsewhere"}).find("elsewhere"), std::string::npos);
  const std::string too_large = error({"train.micro_batch=1000000", "model.ffn=65536", "train.batch_tokens=0"});
  for (const char* part : {"needs", "activations", "train.recompute = \"full\"", "train.micro_batch = 500000"})
    EXPECT_NE(too_large.find(part), std::string::npos) << part << " in: " << too_large;
  train("e");
  EXPECT_NE(error({"checkpoint.resume=never"}).find("already holds"), std::string::npos);
  EXPECT_NE(error({"optimizer.kind=sgd", "train.steps=9"}).find("optimizer.kind"), std::string::npos);
  EXPECT_NE(error({"model.ffn=64", "train.steps=9"}).find("intermediate_size was 48 and is 64"), std::string::npos);
}

TEST_F(TrainerTest, ACheckpointIsNotReadAsAnotherModel) {
  train("a", {"train.steps=1"});
  // All of these fit the stored tensors, or leave some of them unread.
  for (const auto& [wrong, key] :
       std::vector<std::pair<std::string, std::string>>{{"model.layers=1", "num_hidden_layers"},
                                                        {"model.rope_theta=500", "rope_theta"},
                                                        {"model.norm_eps=1e-3", "rms_norm_eps"},
                                                        {"model.family=mistral", "architectures"}}) {
    try {
      train("a", {"train.steps=2", wrong});
      FAIL() << wrong << " was accepted";
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find(key), std::string::npos) << e.what();
    }
  }
  // What only training knows may change.
  EXPECT_EQ(train("a", {"train.steps=2", "optimizer.lr=1e-4", "model.dropout=0.1", "data.sequence_length=12"}).steps,
            2);
}

TEST_F(TrainerTest, WhatCannotBeIsRefusedBeforeTextIsTokenized) {
  base::write_file_atomic(dir_ + "/a.txt", "Once upon a time.");
  const std::string text = "data.sources='" + dir_ + "/a.txt'", cache = "data.cache='" + dir_ + "/cache'";
  const std::string tokenizer =
      std::string("data.tokenizer='") + base::source_dir() + "/tests/golden/tokenizer/small.model'";
  for (const char* wrong : {"model.heads=5", "model.rope_theta=0", "model.family=gpt5", "train.batch_tokens=100"}) {
    EXPECT_THROW(Trainer(recipe("a", {text, cache, tokenizer, wrong}), *self_), base::Error) << wrong;
    EXPECT_FALSE(fs::exists(dir_ + "/cache")) << wrong;
  }
  EXPECT_THROW(Trainer(recipe("a", {text, cache, tokenizer, "data.validation=nowhere.txt"}), *self_), base::Error);
  EXPECT_FALSE(fs::exists(dir_ + "/cache"));
}

TEST_F(TrainerTest, AStartThatFindsNoTextLeavesNoFolders) {
  base::write_file_atomic(dir_ + "/none.txt", " \n");
  const std::string tokenizer =
      std::string("data.tokenizer='") + base::source_dir() + "/tests/golden/tokenizer/small.model'";
  EXPECT_THROW(Trainer(recipe("a", {"data.sources='" + dir_ + "/none.txt'", tokenizer}), *self_), base::Error);
  EXPECT_FALSE(fs::exists(dir_ + "/a"));
}

TEST_F(TrainerTest, NamesThatAreNotCheckpointsAreTheUsers) {
  for (const char* name : {"step-00000002-mine", "step-best", "step-3", "step-mine.tmp"}) {
    fs::create_directories(dir_ + "/run/" + name + "/state");
    base::write_file_atomic(dir_ + "/run/" + name + "/state/index.json", "{}");
  }
  train("run", {"checkpoint.every=1", "checkpoint.keep=2"});
  for (const char* name : {"step-00000002-mine", "step-best", "step-3", "step-mine.tmp", "step-00000005"})
    EXPECT_TRUE(fs::exists(dir_ + "/run/" + name)) << name;
  fs::remove(dir_ + "/run/latest");
  comm::Communicator& self = *self_;
  EXPECT_EQ(CheckpointFolder(dir_ + "/run", 2, self).find_latest(), dir_ + "/run/step-00000006");
}

TEST_F(TrainerTest, AFolderIsOneRunsAtATime) {
  fs::create_directories(dir_ + "/run");
  {
    RunLock other(dir_ + "/run");
    EXPECT_THROW(train("run"), base::Error);
  }
  EXPECT_EQ(train("run").steps, 6);
}

}  // namespace
}  // namespace sinter::train
