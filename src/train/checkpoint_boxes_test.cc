// Checkpoints of parts: whatever layout writes them, whatever layout reads them.
#include "train/checkpoint_boxes.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/rng.h"
#include "io/safetensors.h"
#include "train/checkpoint_writer.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;
using base::Shape;

int64_t random_below(uint64_t& counter, int64_t n) {
  return static_cast<int64_t>(base::CounterRng{3, 1}.bits64(counter++) % static_cast<uint64_t>(n));
}

TEST(CheckpointBoxes, BoxesOfAStretchAreItsElementsInOrder) {
  uint64_t counter = 0;
  for (const Shape& shape : {Shape{7}, Shape{3, 5}, Shape{2, 3, 4}, Shape{2, 2, 3, 2}, Shape{1, 6}}) {
    StateBox all{shape, shape};
    for (int axis = 0; axis < shape.rank(); ++axis) all.begin.set(axis, 0);
    for (int round = 0; round < 50; ++round) {
      const int64_t n = shape.num_elements(), begin = random_below(counter, n);
      const int64_t count = 1 + random_below(counter, n - begin);
      std::vector<int64_t> seen;
      const std::vector<StateBox> boxes = boxes_of_stretch(shape, begin, count);
      EXPECT_LE(static_cast<int>(boxes.size()), 2 * shape.rank() - 1);
      for (const StateBox& box : boxes) {
        visit_rows(box, all, box, [&](int64_t from, int64_t, int64_t row) {
          for (int64_t i = 0; i < row; ++i) seen.push_back(from + i);
        });
      }
      std::vector<int64_t> expected(static_cast<size_t>(count));
      std::iota(expected.begin(), expected.end(), begin);
      ASSERT_EQ(seen, expected) << shape.to_string() << " from " << begin;
    }
  }
}

// A tensor (rows, 6) of one or many chunks, cut among ranks by stretches and read back by other stretches and boxes.
class PartsOf : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = (fs::temp_directory_path() / ("sinter_boxes_" + std::to_string(::getpid()))).string();
    fs::remove_all(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }
  static float value_at(int64_t i) { return static_cast<float>(i % 100003); }
  static StateTensor stretch(const Shape& shape, int64_t begin, int64_t count, bool is_filled) {
    Shape zero = shape;
    for (int axis = 0; axis < shape.rank(); ++axis) zero.set(axis, 0);
    core::Tensor values(core::runtime({}).allocator(), {count}, core::DType::f32);
    for (int64_t i = 0; i < count; ++i) values.data<float>()[i] = is_filled ? value_at(begin + i) : -1.0f;
    return {"m", "a", values, StatePlace{shape, shape, {{zero, shape, zero}}, begin, 0, 1}};
  }
  void save(const std::vector<StateTensor>& tensors) {
    const CheckpointFolder folder(dir_, 2, *self_);
    CheckpointWriter writer(folder, *self_);
    writer.start({.step = 1, .noise_scale = {0, 0, 0}}, tensors, {}, true);
    const auto failure = writer.take_failure();
    ASSERT_FALSE(failure) << failure->reason;
  }
  std::string load_error(const StateTensor& t) const {
    try {
      load_checkpoint(dir_ + "/latest", {t});
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  }
  std::string dir_;
  std::unique_ptr<comm::Communicator> self_ = comm::make_self();
};

TEST_F(PartsOf, StretchesAreReadByOtherStretchesAndColumns) {
  const Shape shape{100003, 6};
  save({stretch(shape, 0, shape.num_elements(), true)});
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 5}, {400001, 200005}, {600017, 1}}) {
    const StateTensor part = stretch(shape, begin, count, false);
    load_checkpoint(dir_ + "/latest", {part});
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(part.values.data<float>()[i], value_at(begin + i));
  }
  // Columns 2 to 4, as a rank of the tensor axis holds an output projection.
  const Shape local{100003, 2};
  core::Tensor values(core::runtime({}).allocator(), local, core::DType::f32);
  const StateTensor columns{"m", "a", values, StatePlace{shape, local, {{{0, 2}, local, {0, 0}}}, 0, 0, 1}};
  load_checkpoint(dir_ + "/latest", {columns});
  for (int64_t row = 0; row < local[0]; row += 997) ASSERT_EQ(values.data<float>()[2 * row + 1], value_at(6 * row + 3));
}

TEST_F(PartsOf, DamageIsFoundWhereItIsReadAndOnlyThere) {
  const Shape shape{200000, 6};
  save({stretch(shape, 0, shape.num_elements(), true)});
  const std::string file = dir_ + "/latest/state/rank-00000.safetensors";
  std::string bytes = base::read_file(file);
  bytes[bytes.size() - 3] ^= 1;  // in the last chunk
  std::ofstream(file, std::ios::binary) << bytes;
  EXPECT_EQ(load_error(stretch(shape, 0, 1000, false)), "");
  EXPECT_NE(load_error(stretch(shape, shape.num_elements() - 10, 10, false)).find("damaged"), std::string::npos);
}

TEST_F(PartsOf, WhatIsMissingOrOutsideIsRefused) {
  const Shape shape{10, 6};
  save({stretch(shape, 0, 60, true)});
  const std::string path = dir_ + "/latest/state/index.json";
  const nlohmann::json good = nlohmann::json::parse(base::read_file(path));
  EXPECT_EQ(good["version"], 2);
  nlohmann::json bad = good;
  bad["tensors"][0]["parts"][0]["boxes"][0] = {0, 0, 9, 6};
  std::ofstream(path) << bad.dump();
  EXPECT_NE(load_error(stretch(shape, 0, 60, false)).find("pieces hold 54 of 60"), std::string::npos);
  bad["tensors"][0]["parts"][0]["boxes"][0] = {1, 0, 10, 6};
  std::ofstream(path) << bad.dump();
  EXPECT_NE(load_error(stretch(shape, 0, 60, false)).find("outside"), std::string::npos);
  EXPECT_NE(load_error(stretch({60}, 0, 60, false)).find("index.json"), std::string::npos);
}

TEST_F(PartsOf, VersionOneIsStillRead) {
  fs::create_directories(dir_ + "/old/state");
  std::vector<float> values(60);
  for (size_t i = 0; i < 60; ++i) values[i] = value_at(static_cast<int64_t>(i));
  nlohmann::json pieces = nlohmann::json::array();
  for (int r = 0; r < 3; ++r) {
    const std::string name = "rank-0000" + std::to_string(r) + ".safetensors";
    io::SafetensorsWriter writer(dir_ + "/old/state/" + name, {{"format", "sinter state"}});
    writer.declare("m/a", base::DType::f32, {20});
    const auto bytes = std::as_bytes(std::span(values).subspan(static_cast<size_t>(r) * 20, 20));
    writer.write("m/a", bytes);
    writer.commit();
    pieces.push_back(
        {{"file", name}, {"begin", r * 20}, {"count", 20}, {"hash", fmt::format("{:016x}", base::hash_bytes(bytes))}});
  }
  const nlohmann::json index{{"format", "sinter state"},
                             {"version", 1},
                             {"step", 4},
                             {"updates", 4},
                             {"tokens", 9},
                             {"guard", nlohmann::json::array()},
                             {"noise_scale", {0, 0, 0}},
                             {"ranks", 3},
                             {"recipe", ""},
                             {"tensors", {{{"kind", "m"}, {"name", "a"}, {"shape", {10, 6}}, {"pieces", pieces}}}}};
  std::ofstream(dir_ + "/old/state/index.json") << index.dump();
  const StateTensor part = stretch({10, 6}, 15, 30, false);
  EXPECT_EQ(load_checkpoint(dir_ + "/old", {part}).step, 4);
  for (int64_t i = 0; i < 30; ++i) EXPECT_EQ(part.values.data<float>()[i], value_at(15 + i));
}

}  // namespace
}  // namespace sinter::train
