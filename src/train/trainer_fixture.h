// Small runs for the tests of the trainer.
#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "comm/communicator.h"
#include "train/trainer.h"

namespace sinter::train {

namespace fs = std::filesystem;

class TrainerTest : public ::testing::Test {
 protected:
  // One thread, only errors told, and in dir_ the shards a.tok and v.tok: documents of 3 to 40 tokens in which the next
  // token follows from the last by a rule.
  void SetUp() override;
  void TearDown() override { fs::remove_all(dir_); }

  // A small Llama trained for six steps into dir_/run.
  spec::Recipe recipe(const std::string& run, const std::vector<std::string>& overrides = {}) const;
  TrainResult train(const std::string& run, const std::vector<std::string>& overrides = {}) {
    return Trainer(recipe(run, overrides), *self_).run();
  }
  // Files of dir_/run/latest: model.safetensors, the first rank's state, index.json; and the lines of metrics.jsonl.
  std::string weights(const std::string& run) const;
  std::string state(const std::string& run) const;
  nlohmann::json index(const std::string& run) const;
  std::vector<nlohmann::json> metrics(const std::string& run) const;

  std::string dir_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
  parallel::Mesh mesh_{*self_};
};

}  // namespace sinter::train
