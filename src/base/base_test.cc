#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>
#include <vector>

#include "base/background.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/mapped_pages.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/threads.h"

namespace sinter::base {
namespace {

TEST(Bf16, RoundsToNearestEvenAndKeepsSpecials) {
  EXPECT_EQ(static_cast<float>(bf16(1.0f)), 1.0f);
  EXPECT_EQ(static_cast<float>(bf16(1.00390625f)), 1.0f);       // halfway, to even
  EXPECT_EQ(static_cast<float>(bf16(1.01171875f)), 1.015625f);  // halfway, to even
  EXPECT_TRUE(std::isnan(static_cast<float>(bf16(NAN))));
  EXPECT_TRUE(std::isinf(static_cast<float>(bf16(INFINITY))));
}

TEST(F16, EveryHalfSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    f16 half;
    half.bits = static_cast<uint16_t>(bits);
    float value = static_cast<float>(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(f16(value))));
    } else {
      EXPECT_EQ(f16(value).bits, half.bits);
    }
  }
  EXPECT_TRUE(std::isinf(static_cast<float>(f16(65520.0f))));
  EXPECT_EQ(static_cast<float>(f16(65519.0f)), 65504.0f);
}

TEST(Philox, MatchesTheKnownAnswerOfTheRandom123Paper) {
  auto zero = philox(0, 0, 0);
  EXPECT_EQ(zero[0], 0x6627e8d5u);
  EXPECT_EQ(zero[1], 0xe169c58du);
  EXPECT_EQ(zero[2], 0xbc57ac4cu);
  EXPECT_EQ(zero[3], 0x9b00dbd8u);
  auto ones = philox(~0ull, ~0ull, ~0ull);
  EXPECT_EQ(ones[0], 0x408f276du);
}

TEST(CounterRng, NormalHasMeanZeroAndUnitVariance) {
  CounterRng rng{7, 3};
  double sum = 0, squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    double x = rng.normal(static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.01);
}

TEST(ParallelFor, VisitsEveryIndexOnceForAnyThreadCount) {
  int before = num_threads();
  for (int threads : {1, 2, 3, 7}) {
    set_num_threads(threads);
    std::vector<std::atomic<int>> visits(1000);
    parallel_for(1000, 7, [&](int64_t begin, int64_t end) {
      EXPECT_LE(end - begin, 7);
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
    });
    for (auto& v : visits) EXPECT_EQ(v, 1);
  }
  set_num_threads(before);
}

TEST(ParallelFor, RethrowsAPiecesExceptionAndStaysUsable) {
  EXPECT_THROW(parallel_for(100, 1, [](int64_t begin, int64_t) { SINTER_CHECK(begin != 50, "piece {}", begin); }),
               Error);
  std::atomic<int64_t> sum{0};
  parallel_for(10, 1, [&](int64_t begin, int64_t) {
    parallel_for(10, 1, [&](int64_t inner, int64_t) { sum += begin * inner; });
  });
  EXPECT_EQ(sum, 45 * 45);
}

TEST(BackgroundTask, RunsBesideTheCallerOffThePoolAndHandsOverItsError) {
  BackgroundTask task;
  task.wait();  // nothing to wait for
  std::promise<void> may_end;
  std::thread::id own, inner;
  task.start([&] {
    own = std::this_thread::get_id();
    std::atomic<int> others = 0;
    parallel_for(64, 1, [&](int64_t, int64_t) { others += std::this_thread::get_id() != own; });
    if (others == 0) inner = own;
    may_end.get_future().wait();
    fail("no room");
  });
  EXPECT_TRUE(task.is_running());
  std::atomic<int64_t> sum = 0;
  parallel_for(10, 1, [&](int64_t begin, int64_t) { sum += begin; });  // the pool is free
  EXPECT_EQ(sum, 45);
  may_end.set_value();
  EXPECT_THROW(task.wait(), Error);
  EXPECT_FALSE(task.is_running());
  EXPECT_NE(own, std::this_thread::get_id());
  EXPECT_EQ(inner, own);
  task.start([&] { sum = 1; });
  task.wait();
  EXPECT_EQ(sum, 1);
}

TEST(NearestName, SuggestsOnlyLikelySlips) {
  EXPECT_EQ(nearest_name("lerning_rate", {"learning_rate", "warmup"}), "learning_rate");
  EXPECT_EQ(nearest_name("zzz", {"learning_rate", "warmup"}), "");
  EXPECT_EQ(nearest_name("uz", {"us", "uk"}), "us");
  for (auto [written, meant] :
       {std::pair{"maxTokens", "max_tokens"}, {"top-p", "top_p"}, {"temprature", "temperature"}}) {
    EXPECT_TRUE(is_slip(written, meant)) << written;
  }
  for (auto [written, meant] : {std::pair{"topic", "top_k"}, {"need", "seed"}, {"prompt_id", "prompt"}}) {
    EXPECT_FALSE(is_slip(written, meant)) << written;
  }
  EXPECT_EQ(nearest_name("-1", {"us", "uk"}), "");
}

TEST(Table, LinesUpColumns) {
  Table table({"name", "value"});
  table.add_row({"a", "1.5"});
  table.add_row({"long", "22"});
  EXPECT_EQ(table.to_string(), "name  value\n----  -----\na       1.5\nlong     22\n");
}

TEST(Table, NoLineIsWiderThan120ColumnsEvenWhereAWordIs) {
  Table table({"task", "file", "from"});
  const std::string path = "core/" + std::string(50, 'a') + "_" + std::string(50, 'b') + ".jsonl";
  table.add_row({"a task", path, "host/" + std::string(90, 'c') + " and more words to read"});
  std::istringstream lines(table.to_string());
  std::string file;
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 120u) << line;
    if (line.find("core/") != std::string::npos) file = line;
  }
  EXPECT_NE(file.find("core/aaa"), std::string::npos);
  EXPECT_EQ(table.to_string().find("core/ a"), std::string::npos) << "a word that is cut gets no space";
}

TEST(File, AtomicWriteReplacesAndReadsBack) {
  std::string path = std::filesystem::temp_directory_path() / ("sinter_base_test_" + std::to_string(::getpid()));
  write_file_atomic(path, "one");
  write_file_atomic(path, "two");
  EXPECT_EQ(read_file(path), "two");
  EXPECT_EQ(MappedFile(path).text(), "two");
  std::filesystem::remove(path);
  EXPECT_THROW(read_file(path), Error);
}

TEST(Log, LevelsAreNamedInLowerCaseAndNothingElseIs) {
  EXPECT_EQ(log_level_named("debug"), LogLevel::debug);
  EXPECT_EQ(log_level_named("error"), LogLevel::error);
  EXPECT_FALSE(log_level_named("Debug"));
  EXPECT_FALSE(log_level_named(""));
}

TEST(File, OnlyPagesOfMapsAreDropped) {
  const std::string path = "/tmp/sinter_base_pages_" + std::to_string(::getpid());
  write_file_atomic(path, std::string(1 << 20, 'x'));
  const MappedFile map(path);
  drop_mapped_pages(map.bytes());
  EXPECT_EQ(map.text().find_first_not_of('x'), std::string_view::npos);  // read again
  std::vector<std::byte> own(1 << 20, std::byte{7});
  drop_mapped_pages(own);
  EXPECT_EQ(std::count(own.begin(), own.end(), std::byte{7}), 1 << 20);
  std::filesystem::remove(path);
}

TEST(File, BytesOfMapsAreCopiedAlsoWhenAnotherFileHasTakenTheName) {
  const std::string path = "/tmp/sinter_base_copy_" + std::to_string(::getpid());
  std::string content(3 << 20, ' ');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 2654435761u >> 13);
  std::vector<std::byte> copy(content.size());
  for (bool is_replaced : {false, true}) {
    write_file_atomic(path, content);
    const MappedFile map(path);
    if (is_replaced) write_file_atomic(path, std::string(content.size(), 'y'));
    for (size_t from : {0, 1, 4095, 1 << 20}) {
      std::fill(copy.begin(), copy.end(), std::byte{0});
      const auto piece = map.bytes().subspan(from);
      copy_mapped(copy.data(), piece);
      EXPECT_EQ(std::memcmp(copy.data(), content.data() + from, piece.size()), 0) << from;
    }
  }
  const std::vector<std::byte> own(100, std::byte{7});
  copy_mapped(copy.data(), own);
  EXPECT_TRUE(std::equal(own.begin(), own.end(), copy.begin()));
  std::filesystem::remove(path);
}

TEST(File, WhatPeopleEditIsNotReplacedUnlessForced) {
  const std::string path = ::testing::TempDir() + "sinter_new/folder/recipe.toml";
  std::filesystem::remove_all(::testing::TempDir() + "sinter_new");
  write_new_file(path, "a", false);
  write_new_file(path, "a", false);
  EXPECT_THROW(write_new_file(path, "b", false), Error);
  EXPECT_EQ(read_file(path), "a");
  write_new_file(path, "b", true);
  EXPECT_EQ(read_file(path), "b");
}

TEST(File, PipesAndDevicesInTheShapeOfAFileAreRefusedAtOnce) {
  const std::string pipe = ::testing::TempDir() + "sinter_pipe";
  ::unlink(pipe.c_str());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  auto error_of = [](const std::string& path) {
    try {
      read_file(path);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(error_of(pipe).find("is a pipe; expected a plain file"), std::string::npos);
  EXPECT_NE(error_of("/dev/zero").find("is a device"), std::string::npos);
  EXPECT_THROW(MappedFile{pipe}, Error);
  ::unlink(pipe.c_str());
}

TEST(Json, BracketsWithoutEndAreAnErrorAndNotTheEndOfTheStack) {
  EXPECT_THROW(parse_json(std::string(200000, '['), "deep.json"), Error);
  EXPECT_THROW(parse_json("{\"a\": " + std::string(300, '[') + std::string(300, ']') + "}", "deep.json"), Error);
  EXPECT_EQ(parse_json("[\"" + std::string(1000, '[') + "\\\"[\"]", "text.json").size(), 1u) << "text may hold them";
}

TEST(Json, ErrorsSayWhereAndWhatWasExpectedInNoLibrarysWords) {
  const std::pair<std::string, std::string> cases[] = {
      {"{\n", "line 2, column 1: the text ends, expected a key in double quotes"},
      {"{,}", "line 1, column 2: found ',}', expected a key in double quotes"},
      {"{\"a\": 1,\n \"b\" 2}", "line 2, column 6: found '2}', expected ':' behind the key"},
      {"[1 2]", "line 1, column 4: found '2]', expected ',' or ']'"},
      {"{\"a\": [1, 2}", "found '}', expected ',' or ']'"},
      {"{\"a\": nan}", "found 'nan}', expected a value"},
      {"{} x", "found 'x', expected the end behind the value"},
      {"", "the text ends, expected a value"},
      {"[\"a\nb\"]", "a text holds a line break"},
      {"[\"a", "a text has no closing quote"},
      {"[\"\xff\"]", "the bytes are not UTF-8"},
      {"[\"\\q\"]", "'\\' is followed by what it cannot be"},
      {"[1e999]", "a number is out of range"},
  };
  for (const auto& [text, expected] : cases) {
    try {
      parse_json(text, "x.json");
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      const std::string told = e.what();
      EXPECT_NE(told.find(expected), std::string::npos) << text << ": " << told;
      EXPECT_EQ(told.find("parsing"), std::string::npos) << told;
    }
  }
}

TEST(Json, ErrorsNameTheOrigin) {
  try {
    parse_json("{\"a\": ", "config.json");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("config.json"), std::string::npos);
  }
}

}  // namespace
}  // namespace sinter::base
