#include "tune/data/dataset.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/source_dir.h"

namespace sinter::tune {
namespace {

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest()
      : tokenizer_(tokenizer::Tokenizer::load(base::source_dir() + "/tests/golden/tune/models/tokenizer")),
        chat_(tokenizer::ChatTemplate::load(base::source_dir() + "/tests/golden/tune/models/tokenizer")),
        renderer_(tokenizer_, &chat_, {}) {}

  std::string write(const std::string& name, int rows, const std::string& more = "") {
    std::string text;
    for (int i = 0; i < rows; ++i)
      text += fmt::format("{{\"question\":\"{} {}?\",\"answer\":\"{}\"}}\n", name, i, std::string(1 + i % 7, 'a'));
    const std::string folder = ::testing::TempDir() + "dataset_test";
    std::filesystem::create_directories(folder);
    base::write_file_atomic(folder + "/" + name + ".jsonl", text + more);
    return folder + "/" + name + ".jsonl";
  }

  tokenizer::Tokenizer tokenizer_;
  tokenizer::ChatTemplate chat_;
  Renderer renderer_;
};

TEST_F(DatasetTest, RowsKeepTheirOrderWhateverThreadRendersThem) {
  const Dataset<Sample> data = load_samples({.sources = {{.records = {.path = write("order", 100)}}}}, renderer_);
  ASSERT_EQ(data.items.size(), 100u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(data.items[i].origin, fmt::format("order.jsonl:{}", i + 1));
  EXPECT_EQ(data.report.rows, 100);
  EXPECT_GT(data.report.supervised, 100);
}

TEST_F(DatasetTest, WhatCannotBeLearnedIsCountedAndNamed) {
  const std::string path =
      write("bad", 10, "oops\n{\"question\":\"q\",\"answer\":\"" + std::string(500, 'b') + "\"}\n");
  DatasetOptions options{.sources = {{.records = {.path = path}}}, .max_tokens = 100};
  const Dataset<Sample> data = load_samples(options, renderer_);
  EXPECT_EQ(data.items.size(), 10u);
  EXPECT_EQ(data.report.bad, 1);
  EXPECT_EQ(data.report.too_long, 1);
  EXPECT_NE(data.report.summary(100).find("1 longer than 100 tokens"), std::string::npos);
  options.stops_at_bad = true;
  EXPECT_THROW(load_samples(options, renderer_), base::Error);
}

TEST_F(DatasetTest, TheValidationIsAShareThatDoesNotDependOnOtherRows) {
  DatasetOptions options{.sources = {{.records = {.path = write("split", 400)}}}, .validation_share = 0.2, .seed = 3};
  const Dataset<Sample> data = load_samples(options, renderer_);
  EXPECT_EQ(data.items.size() + data.validation.size(), 400u);
  EXPECT_NEAR(static_cast<double>(data.validation.size()), 80, 30);
  std::set<std::string> kept_back;
  for (const Sample& s : data.validation) kept_back.insert(s.origin);
  options.sources[0].records.max_rows = 200;
  for (const Sample& s : load_samples(options, renderer_).validation) EXPECT_TRUE(kept_back.contains(s.origin));
}

TEST_F(DatasetTest, AnEpochHasEveryItemOnceInAnotherOrderEachTime) {
  const std::vector<int64_t> begins = {0, 30, 50};
  const std::vector<int64_t> first = epoch_order(begins, {0, 0}, 7, 0), second = epoch_order(begins, {0, 0}, 7, 1);
  EXPECT_EQ(std::set<int64_t>(first.begin(), first.end()).size(), 50u);
  EXPECT_NE(first, second);
  EXPECT_EQ(first, epoch_order(begins, {0, 0}, 7, 0));
  const std::vector<int64_t> in_order = epoch_order(begins, {0, 0}, 7, 0, false);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(in_order[static_cast<size_t>(i)], i);
}

TEST_F(DatasetTest, WeightsAreSharesOfAnEpoch) {
  const std::vector<int64_t> begins = {0, 30, 40};
  std::vector<int> seen(40);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> order = epoch_order(begins, {1, 1}, 7, epoch);
    EXPECT_EQ(order.size(), 40u);
    EXPECT_EQ(std::count_if(order.begin(), order.end(), [](int64_t i) { return i >= 30; }), 20);
    for (int64_t i : order) ++seen[static_cast<size_t>(i)];
  }
  // 60 from each source over three epochs: 2 passes through the first, 6 through the second.
  for (int64_t i = 0; i < 40; ++i) EXPECT_EQ(seen[static_cast<size_t>(i)], i < 30 ? 2 : 6) << i;
}

}  // namespace
}  // namespace sinter::tune
