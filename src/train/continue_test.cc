// Runs that meet another world than they left: other batches, damaged data, a tokenizer that is gone, a second run.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"
#include "data/source.h"
#include "data/token_shard.h"
#include "tokenizer/tokenizer.h"
#include "train/checkpoint.h"
#include "train/export.h"
#include "train/run_lock.h"
#include "train/run_plan.h"
#include "train/trainer_fixture.h"

namespace sinter::train {
namespace {

using ContinueTest = TrainerTest;

template <class Work>
std::string error_of(Work work) {
  try {
    work();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "";
}

std::vector<int32_t> tokens_of(const std::vector<data::MicroBatch>& batches) {
  std::vector<int32_t> tokens;
  for (const data::MicroBatch& batch : batches) tokens.insert(tokens.end(), batch.tokens.begin(), batch.tokens.end());
  return tokens;
}

TEST_F(ContinueTest, OtherBatchesReadOnWhereTheOldOnesEnded) {
  spec::Recipe by_tokens = recipe("run", {"train.batch_tokens=384"});
  by_tokens.train.steps = 0;
  by_tokens.train.tokens = 4 * 192 + 2 * 384;
  RunPlan resumed = make_run_plan(by_tokens, mesh_), fresh = make_run_plan(by_tokens, mesh_);
  EXPECT_EQ(resumed.steps, 4);
  resumed.continue_after(4, 4 * 192);
  EXPECT_EQ(resumed.steps, 6) << "four small steps are done, two large ones are left";
  EXPECT_EQ(resumed.tokens(), by_tokens.train.tokens);
  EXPECT_EQ(tokens_of(resumed.loader->step(4)), tokens_of(fresh.loader->step(2)));
  EXPECT_EQ(tokens_of(resumed.loader->step(5)), tokens_of(fresh.loader->step(3)));
  // Nothing changes where nothing has.
  fresh.continue_after(2, 2 * 384);
  EXPECT_EQ(fresh.steps, 4);
}

TEST_F(ContinueTest, ARunGoesOnWithOtherBatchesToItsLastToken) {
  train("run", {"train.steps=4", "schedule.kind=constant"});
  spec::Recipe larger = recipe("run", {"train.batch_tokens=384", "schedule.kind=constant"});
  larger.train.steps = 0;
  larger.train.tokens = 4 * 192 + 2 * 384;
  EXPECT_EQ(Trainer(larger, *self_).run().steps, 6);
  EXPECT_EQ(index("run")["tokens"], larger.train.tokens);
  EXPECT_EQ(Trainer(larger, *self_).run().steps, 6) << "and knows that it is done";
}

TEST_F(ContinueTest, ARampAddedLaterIsPlannedToItsEnd) {
  train("run", {"train.steps=8", "schedule.kind=constant"});
  spec::Recipe ramp = recipe("run", {"train.batch_tokens=1536", "train.ramp_from_tokens=192", "train.ramp_steps=12",
                                     "schedule.kind=constant"});
  ramp.train.steps = 0;
  ramp.train.tokens = 8 * 192 + 4 * 1536;
  EXPECT_GT(Trainer(ramp, *self_).run().steps, 8);
  EXPECT_GE(index("run")["tokens"], ramp.train.tokens);
  const std::string error = error_of([&] {
    make_run_plan(recipe("x", {"train.ramp_from_tokens=1536", "train.ramp_steps=4"}), mesh_);
  });
  EXPECT_NE(error.find("ramp_from_tokens"), std::string::npos) << error;
}

TEST_F(ContinueTest, AnEarlierStepThatNeedsNothingMoreIsTheResult) {
  train("run", {"train.steps=4", "checkpoint.every=2", "checkpoint.keep=3"});
  const TrainResult again =
      train("run", {"train.steps=2", "checkpoint.resume=" + dir_ + "/run/step-00000002", "checkpoint.every=2"});
  EXPECT_NE(again.checkpoint.find("step-00000002"), std::string::npos) << again.checkpoint;
}

TEST_F(ContinueTest, MetricsGoToAPipeOnlyWhereSomeoneReadsIt) {
  const std::string pipe = dir_ + "/pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(train("run", {"log.metrics=" + pipe}).steps, 6);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  EXPECT_EQ(train("again", {"log.metrics=" + pipe}).steps, 6);
  std::string content(1 << 16, ' ');
  EXPECT_GT(::read(reader, content.data(), content.size()), 0);
  ::close(reader);
  EXPECT_EQ(content.rfind("{", 0), 0u);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST_F(ContinueTest, DataThatCannotBeReadLeaveACheckpointOfAllStepsBefore) {
  // Two shards in order, the second damaged in its tokens.
  std::string bytes = base::read_file(dir_ + "/a.tok");
  fs::create_directories(dir_ + "/both");
  base::write_file_atomic(dir_ + "/both/0.tok", bytes);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  base::write_file_atomic(dir_ + "/both/1.tok", bytes);
  const int64_t whole_steps = data::TokenSource(dir_ + "/both/0.tok", 24, {}).num_windows() / 8;
  const std::string error = error_of([&] {
    train("run", {"data.sources=" + dir_ + "/both", "data.shuffle=false", "train.steps=90", "checkpoint.every=0"});
  });
  EXPECT_NE(error.find("damaged"), std::string::npos) << error;
  EXPECT_NE(error.find("saved in"), std::string::npos) << error;
  EXPECT_GT(whole_steps, 2);
  EXPECT_EQ(index("run")["step"], whole_steps);
}

TEST_F(ContinueTest, ARunThatEndsWithoutANumberHasDiverged) {
  const TrainResult result =
      train("run", {"optimizer.lr=1e15", "optimizer.weight_decay=1e10", "optimizer.clip=0", "checkpoint.every=0"});
  EXPECT_FALSE(std::isfinite(result.loss));
  EXPECT_TRUE(result.stopped.starts_with("diverged")) << result.stopped;
  EXPECT_EQ(result.checkpoint, "");
}

TEST_F(ContinueTest, DataOfAnotherTokenizerAreNotForThisCheckpoint) {
  for (uint64_t hash : {5, 6}) {
    data::TokenShardWriter writer(dir_ + "/h" + std::to_string(hash) + ".tok", 48, hash);
    for (int i = 0; i < 40; ++i) writer.add_document(std::vector<int32_t>(30, i % 47));
    writer.commit();
  }
  auto go_on = [&](const std::string& shard, const std::string& steps) {
    return error_of([&] {
      train("run", {"data.sources=" + dir_ + shard, "data.validation=" + dir_ + shard, "train.steps=" + steps});
    });
  };
  EXPECT_EQ(go_on("/h5.tok", "2"), "");
  EXPECT_NE(go_on("/h6.tok", "3").find("made with another tokenizer"), std::string::npos);
  EXPECT_EQ(go_on("/h5.tok", "3"), "");
  EXPECT_EQ(go_on("/a.tok", "4"), "") << "these do not say";
}

TEST_F(ContinueTest, ASecondRunLeavesTheCheckpointOfTheFirstAlone) {
  const std::string folder = dir_ + "/run", half = folder + "/step-00000002.tmp";
  fs::create_directories(half + "/state");
  {
    const RunLock first(folder);
    EXPECT_NE(error_of([&] { train("run"); }).find("in use by another run"), std::string::npos);
    EXPECT_TRUE(fs::exists(half));
  }
  train("run");
  EXPECT_FALSE(fs::exists(half));
}

TEST_F(ContinueTest, ATokenizerOfAnyNameIsAModelFoldersTokenizer) {
  const std::string golden = base::source_dir() + "/tests/golden/tokenizer/";
  for (const char* name : {"small.model", "r50k_base.tiktoken"}) {
    fs::create_directories(dir_ + "/here");
    fs::copy_file(golden + name, dir_ + "/here/" + name, fs::copy_options::overwrite_existing);
    base::write_file_atomic(dir_ + "/here/tokenizer_config.json", "{}");
    const std::vector<NamedFile> files = read_tokenizer_files(dir_ + "/here/" + name);
    ASSERT_EQ(files.size(), 2u) << name;
    EXPECT_EQ(files[1].name, "tokenizer_config.json");
    const std::string model = dir_ + "/model-" + name;
    fs::create_directories(model);
    for (const NamedFile& file : files) base::write_file_atomic(model + "/" + file.name, file.bytes);
    const std::string text = "Once upon a time, there was a cat.";
    EXPECT_EQ(tokenizer::Tokenizer::load(model).encode(text), tokenizer::Tokenizer::load(golden + name).encode(text));
  }
}

}  // namespace
}  // namespace sinter::train
