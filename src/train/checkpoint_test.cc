// Checkpoints: what is written comes back, damage is named, and a failed write costs nothing but itself.
#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>

#include "base/error.h"
#include "base/file.h"
#include "train/checkpoint_writer.h"
#include "train/file_size_limit.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = (fs::temp_directory_path() / ("sinter_checkpoint_" + std::to_string(::getpid()))).string();
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  static StateTensor tensor(const std::string& kind, const std::string& name, float first) {
    std::vector<float> values(12);
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    return {kind, name, core::make_tensor<float>(core::runtime({}).allocator(), {3, 4}, values)};
  }
  static std::string load_error(const std::string& folder, const std::vector<StateTensor>& tensors) {
    try {
      load_checkpoint(folder, tensors);
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  }
  // One that is complete on return; "" or why it failed.
  std::string save(const CheckpointFolder& folder, const RunState& run, const std::vector<StateTensor>& tensors,
                   const CheckpointWriter::Exporter& exporter = {}) {
    CheckpointWriter writer(folder, *self_);
    writer.start(run, tensors, exporter, true);
    const auto failure = writer.take_failure();
    return failure ? failure->reason : "";
  }
  float first_value(const std::string& folder) const {
    const StateTensor master = tensor("master", "a", 0);
    load_checkpoint(folder, {master});
    return master.values.data<float>()[0];
  }
  std::string dir_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
};

TEST_F(Checkpoint, GivesBackWhatWasSavedAndKeepsTheNewest) {
  CheckpointFolder folder(dir_, 2, *self_);
  EXPECT_FALSE(folder.find_latest());
  for (int64_t step : {1, 2, 3}) {
    save(folder, {.step = step, .updates = 5, .guard = {0.0, 1.5}, .noise_scale = {1, 2, 3}, .recipe = "x"},
         {tensor("master", "a", static_cast<float>(step)), tensor("m", "a", -1)},
         [](const std::string& f, const std::vector<core::Tensor>& masters) {
           EXPECT_EQ(masters.size(), 1u);
           base::write_file_atomic(f + "/config.json", "{}");
         });
  }
  EXPECT_FALSE(fs::exists(dir_ + "/step-00000001"));
  EXPECT_TRUE(fs::exists(dir_ + "/step-00000002"));
  EXPECT_TRUE(fs::exists(dir_ + "/latest/config.json"));
  StateTensor master = tensor("master", "a", 0), m = tensor("m", "a", 0);
  RunState run = load_checkpoint(*folder.find_latest(), {master, m});
  EXPECT_EQ(run.step, 3);
  EXPECT_EQ(run.updates, 5);
  EXPECT_EQ(run.guard, (std::vector<double>{0.0, 1.5}));
  EXPECT_EQ(master.values.data<float>()[11], 14.0f);
  EXPECT_EQ(m.values.data<float>()[0], -1.0f);
}

TEST_F(Checkpoint, DamageAndMissingPiecesAreNamed) {
  CheckpointFolder folder(dir_, 2, *self_);
  const std::vector<StateTensor> tensors{tensor("master", "a", 1), tensor("m", "a", 2)};
  save(folder, {.step = 7, .noise_scale = {0, 0, 0}}, tensors);
  const std::string latest = dir_ + "/latest", rank = latest + "/state/rank-00000.safetensors",
                    index = latest + "/state/index.json";
  EXPECT_EQ(load_error(latest, tensors), "");
  EXPECT_NE(load_error(latest, {tensor("v", "a", 1)}).find("v/a"), std::string::npos);
  const std::string good = base::read_file(rank), good_index = base::read_file(index);
  std::string bad = good;
  bad[bad.size() - 3] = static_cast<char>(bad[bad.size() - 3] ^ 1);
  std::ofstream(rank, std::ios::binary) << bad;
  EXPECT_NE(load_error(latest, tensors).find("damaged"), std::string::npos);
  std::ofstream(rank, std::ios::binary) << good.substr(0, good.size() / 2);
  EXPECT_NE(load_error(latest, tensors).find("rank-00000"), std::string::npos);
  fs::remove(rank);
  EXPECT_NE(load_error(latest, tensors).find("rank-00000"), std::string::npos);
  std::ofstream(rank, std::ios::binary) << good;
  for (size_t cut = 0; cut + 2 < good_index.size(); cut += 37) {
    std::ofstream(index, std::ios::binary) << good_index.substr(0, cut);
    EXPECT_NE(load_error(latest, tensors).find("index.json"), std::string::npos) << cut;
  }
}

TEST_F(Checkpoint, WhatAKilledRunLeftIsClearedAndNeverTakenForWhole) {
  {
    CheckpointFolder folder(dir_, 2, *self_);
    save(folder, {.step = 1, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 1)});
  }
  fs::create_directories(dir_ + "/step-00000002.tmp/state");
  fs::remove(dir_ + "/latest");
  CheckpointFolder folder(dir_, 2, *self_);
  EXPECT_TRUE(fs::exists(dir_ + "/step-00000002.tmp")) << "it may be another run's, at work";
  folder.remove_leftovers();
  EXPECT_FALSE(fs::exists(dir_ + "/step-00000002.tmp"));
  EXPECT_EQ(*folder.find_latest(), dir_ + "/step-00000001");
  // The same step again replaces it.
  save(folder, {.step = 1, .tokens = 9, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 5)});
  StateTensor master = tensor("master", "a", 0);
  EXPECT_EQ(load_checkpoint(*folder.find_latest(), {master}).tokens, 9);
  EXPECT_EQ(master.values.data<float>()[0], 5.0f);
}

TEST_F(Checkpoint, AKilledSwapGivesTheOldOneItsNameBack) {
  CheckpointFolder folder(dir_, 2, *self_);
  for (int64_t step : {1, 2}) save(folder, {.step = step, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 1)});
  fs::rename(dir_ + "/step-00000001", dir_ + "/step-00000001.replaced.tmp");  // killed before the new one had the name
  fs::create_directories(dir_ + "/step-00000002.replaced.tmp/state");         // and after
  folder.remove_leftovers();
  EXPECT_EQ(first_value(dir_ + "/step-00000001"), 1.0f);
  EXPECT_EQ(first_value(dir_ + "/step-00000002"), 1.0f);
  EXPECT_FALSE(fs::exists(dir_ + "/step-00000001.replaced.tmp"));
  EXPECT_FALSE(fs::exists(dir_ + "/step-00000002.replaced.tmp"));
}

// `cp -rL` and the like make a folder of the link.
TEST_F(Checkpoint, ALatestThatIsAFolderNeitherHidesNewerOnesNorStopsThem) {
  CheckpointFolder folder(dir_, 2, *self_);
  save(folder, {.step = 1, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 1)});
  fs::remove(dir_ + "/latest");
  fs::copy(dir_ + "/step-00000001", dir_ + "/latest", fs::copy_options::recursive);
  fs::rename(dir_ + "/step-00000001", dir_ + "/elsewhere");
  EXPECT_EQ(*folder.find_latest(), dir_ + "/latest") << "all there is";
  fs::rename(dir_ + "/elsewhere", dir_ + "/step-00000001");
  EXPECT_EQ(*folder.find_latest(), dir_ + "/step-00000001");
  EXPECT_EQ(save(folder, {.step = 2, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 2)}), "");
  EXPECT_TRUE(fs::is_symlink(dir_ + "/latest"));
  EXPECT_EQ(first_value(*folder.find_latest()), 2.0f);
  EXPECT_TRUE(fs::exists(dir_ + "/latest.old"));
}

TEST_F(Checkpoint, OneThatHasItsNameIsWrittenWhateverBecomesOfTheLink) {
  CheckpointFolder folder(dir_, 2, *self_);
  fs::create_directories(dir_ + "/latest.tmp/in-the-way");  // cannot be removed as a link would be
  EXPECT_EQ(save(folder, {.step = 1, .noise_scale = {0, 0, 0}}, {tensor("master", "a", 3)}), "");
  EXPECT_EQ(first_value(*folder.find_latest()), 3.0f);
}

// An exporter that begins, and ends when it is told to: a checkpoint that is being written for as long as a test likes.
struct SlowExport {
  std::promise<void> begun, may_end;
  // Begins the checkpoint of step 1 in the background, and returns when it is under way.
  void start(CheckpointWriter& writer, const StateTensor& master) {
    writer.reserve({master}, {}, true);
    auto wait = [this](const std::string&, const std::vector<core::Tensor>&) {
      begun.set_value();
      may_end.get_future().wait();
    };
    writer.start({.step = 1, .noise_scale = {0, 0, 0}}, {master}, wait, false);
    begun.get_future().wait();
  }
};

TEST_F(Checkpoint, HoldsTheValuesOfItsMomentWhileTheyChange) {
  const CheckpointFolder folder(dir_, 2, *self_);
  const StateTensor master = tensor("master", "a", 1);
  CheckpointWriter writer(folder, *self_);
  SlowExport slow;
  slow.start(writer, master);
  EXPECT_TRUE(writer.is_working());
  EXPECT_FALSE(folder.find_latest()) << "not complete yet";
  master.values.data<float>()[0] = 100;
  slow.may_end.set_value();
  writer.finish();
  EXPECT_FALSE(writer.is_working());
  EXPECT_FALSE(writer.take_failure());
  EXPECT_EQ(first_value(*folder.find_latest()), 1.0f);
}

TEST_F(Checkpoint, ASecondOneWaitsForTheFirst) {
  const CheckpointFolder folder(dir_, 2, *self_);
  const StateTensor master = tensor("master", "a", 1);
  CheckpointWriter writer(folder, *self_);
  SlowExport slow;
  slow.start(writer, master);
  master.values.data<float>()[0] = 2;
  slow.may_end.set_value();
  writer.start({.step = 2, .noise_scale = {0, 0, 0}}, {master}, {}, false);
  EXPECT_EQ(first_value(dir_ + "/step-00000001"), 1.0f) << "complete when the second begins";
  writer.finish();
  EXPECT_EQ(first_value(dir_ + "/step-00000002"), 2.0f);
}

TEST_F(Checkpoint, OneThatIsBegunIsCompletedWhenItsWriterGoes) {
  const CheckpointFolder folder(dir_, 2, *self_);
  const StateTensor master = tensor("master", "a", 7);
  {
    CheckpointWriter writer(folder, *self_);
    writer.reserve({master}, {}, false);
    writer.start({.step = 1, .noise_scale = {0, 0, 0}}, {master}, {}, false);
  }
  EXPECT_EQ(first_value(*folder.find_latest()), 7.0f);
}

TEST_F(Checkpoint, AFailedWriteNamesTheFileAndLeavesTheOneBefore) {
  const CheckpointFolder folder(dir_, 2, *self_);
  const StateTensor master = tensor("master", "a", 1);
  CheckpointWriter writer(folder, *self_);
  writer.reserve({master}, {}, true);
  ASSERT_EQ(save(folder, {.step = 1, .noise_scale = {0, 0, 0}}, {master}), "");
  for (const bool waits : {true, false}) {
    const FileSizeLimit limit(16);
    writer.start({.step = 2, .noise_scale = {0, 0, 0}}, {master}, {}, waits);
    writer.finish();
    const auto failure = writer.take_failure();
    ASSERT_TRUE(failure);
    EXPECT_EQ(failure->step, 2);
    EXPECT_NE(failure->reason.find("step-00000002.tmp/state/rank-00000.safetensors"), std::string::npos);
    EXPECT_NE(failure->reason.find("File too large"), std::string::npos) << failure->reason;
    EXPECT_FALSE(fs::exists(dir_ + "/step-00000002.tmp"));
    EXPECT_EQ(first_value(*folder.find_latest()), 1.0f);
  }
  // What an exporter throws is a failure too, and the next one succeeds.
  writer.start(
      {.step = 3, .noise_scale = {0, 0, 0}}, {master},
      [](const std::string&, const std::vector<core::Tensor>&) { base::fail("no tokenizer"); }, false);
  writer.finish();
  EXPECT_EQ(writer.take_failure()->reason, "no tokenizer");
  writer.start({.step = 3, .noise_scale = {0, 0, 0}}, {master}, {}, false);
  writer.finish();
  EXPECT_FALSE(writer.take_failure());
  EXPECT_TRUE(fs::exists(dir_ + "/step-00000003/state/index.json"));
}

TEST_F(Checkpoint, SharesOfTheCopyAreThoseOfTheFiles) {
  const std::vector<StateTensor> tensors{tensor("master", "a", 1), tensor("m", "a", 50)};
  for (const bool with_masters : {false, true}) {
    std::vector<float> seen;
    for (int rank = 0; rank < 5; ++rank) {
      StateCopy copy(tensors, {}, rank, 5, with_masters);
      copy.take(tensors);
      EXPECT_EQ(copy.masters().size(), with_masters && rank == 0 ? 1u : 0u);
      const std::vector<float> piece = core::to_host_floats(copy.pieces()[0]);
      seen.insert(seen.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(seen, core::to_host_floats(tensors[0].values));
  }
}

}  // namespace
}  // namespace sinter::train
