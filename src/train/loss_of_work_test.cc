// What keeps a user's work: checkpoints by time, an answer to Ctrl-C, a look at the disk and at the data before.
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/token_shard.h"
#include "train/checkpoint.h"
#include "train/disk_space.h"
#include "train/file_size_limit.h"
#include "train/run_plan.h"
#include "train/stop_request.h"
#include "train/trainer_fixture.h"

namespace sinter::train {
namespace {

TEST_F(TrainerTest, CheckpointsComeByTimeWhereNoStepsAreGiven) {
  EXPECT_EQ(recipe("defaults").checkpoint.minutes, 15);
  train("often", {"checkpoint.minutes=1e-9", "checkpoint.keep=3"});
  for (const char* step : {"4", "5", "6"}) EXPECT_TRUE(fs::exists(dir_ + "/often/step-0000000" + step)) << step;
  train("never", {"checkpoint.minutes=0"});
  EXPECT_FALSE(fs::exists(dir_ + "/never/step-00000005"));
  EXPECT_EQ(weights("often"), weights("never"));
}

TEST_F(TrainerTest, TheFirstCtrlCIsAnsweredAtOnceWithWhatASecondLoses) {
  StopRequest stop({}, StopRequest::clock_seconds(), true);
  StopRequest::set_unsaved(137);
  testing::internal::CaptureStderr();
  std::raise(SIGINT);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("stopping after this step, then a checkpoint"), std::string::npos) << said;
  EXPECT_NE(said.find("loses the 137 steps since the last checkpoint"), std::string::npos) << said;
}

TEST_F(TrainerTest, OneRankSpeaksOfASignal) {
  StopRequest stop({});
  testing::internal::CaptureStderr();
  std::raise(SIGTERM);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(TrainerTest, ADiskWithoutRoomForOneCheckpointIsRefusedBeforeTheFirstStep) {
  const DiskNeed need{.state_bytes = 3000, .model_bytes = 1000, .kept = 2};
  EXPECT_THROW(check_disk(need, "run", 3999, 0), base::Error);
  base::set_log_level(base::LogLevel::warning);
  testing::internal::CaptureStderr();
  check_disk(need, "run", 5000, 0);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("lower checkpoint.keep"), std::string::npos);
  testing::internal::CaptureStderr();
  check_disk(need, "run", 5000, 7000);  // older checkpoints give way
  check_disk(need, "run", SIZE_MAX, 0);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(TrainerTest, WhereTheLastStateDoesNotFitTheModelIsSavedAlone) {
  train("whole");
  const auto model = fs::file_size(dir_ + "/whole/latest/model.safetensors"),
             state = fs::file_size(dir_ + "/whole/latest/state/rank-00000.safetensors");
  ASSERT_LT(model, state);
  try {
    const FileSizeLimit limit((model + state) / 2);
    train("full");
    FAIL() << "the last checkpoint cannot have been written";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("/full/model-00000006'"), std::string::npos) << e.what();
  }
  EXPECT_EQ(base::read_file(dir_ + "/full/model-00000006/model.safetensors"),
            base::read_file(dir_ + "/whole/latest/model.safetensors"));
}

TEST_F(TrainerTest, ADamagedCheckpointsErrorNamesTheWholeOneBefore) {
  train("run", {"checkpoint.every=2", "checkpoint.keep=3"});
  fs::resize_file(dir_ + "/run/step-00000006/state/rank-00000.safetensors", 100);
  try {
    train("run", {"train.steps=8"});
    FAIL() << "a damaged checkpoint was read";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("checkpoint.resume=" + dir_ + "/run/step-00000004"), std::string::npos)
        << e.what();
  }
  EXPECT_EQ(train("run", {"train.steps=8", "checkpoint.resume=" + dir_ + "/run/step-00000004"}).steps, 8);
}

TEST_F(TrainerTest, CheckpointsThatKeepLeavesOutCountAsRoomOnTheDisk) {
  train("run", {"checkpoint.every=2", "checkpoint.keep=3"});
  const std::string dir = dir_ + "/run";
  EXPECT_EQ(old_checkpoints(dir, 3), std::vector<std::string>{});
  EXPECT_EQ(old_checkpoints(dir, 1), (std::vector<std::string>{dir + "/step-00000002", dir + "/step-00000004"}));
  EXPECT_EQ(old_checkpoints(dir, 1, 4), std::vector<std::string>{dir + "/step-00000002"}) << "later steps are not old";
  EXPECT_EQ(old_checkpoints(dir + "/nowhere", 1), std::vector<std::string>{});
}

TEST_F(TrainerTest, ThePlansCheckpointIsTheSizeOfTheOneThatIsWritten) {
  train("run");
  const Trainer trainer(recipe("other"), *self_);
  const auto planned = static_cast<double>(trainer.plan().disk.checkpoint_bytes());
  const auto written = static_cast<double>(folder_bytes(dir_ + "/run/step-00000006"));
  EXPECT_GT(written, planned);
  EXPECT_LT(written, planned + 64 * 1024) << "headers and index";
  EXPECT_GT(free_disk_bytes(dir_ + "/not/there/yet"), 0u);
}

TEST_F(TrainerTest, ResumingOnOtherDataUnderTheSameNameIsTold) {
  train("run", {"train.steps=3"});
  auto resume = [&] {
    base::set_log_level(base::LogLevel::warning);
    testing::internal::CaptureStderr();
    train("run", {"train.steps=4"});
    base::set_log_level(base::LogLevel::error);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(resume().find("the data are not those"), std::string::npos);
  data::TokenShardWriter writer(dir_ + "/a.tok", 48, 0);
  for (int d = 0; d < 60; ++d) writer.add_document(std::vector<int32_t>(30, d % 47));
  writer.commit();
  EXPECT_NE(resume().find("the data are not those"), std::string::npos);
}

TEST_F(TrainerTest, AValidationShareIsMeasuredWithoutASecondFile) {
  const TrainResult result = train("run", {"data.validation=[]", "data.validation_share=0.2"});
  EXPECT_TRUE(result.validation_loss.has_value());
  EXPECT_EQ(result.validation_step, 6);
}

}  // namespace
}  // namespace sinter::train
