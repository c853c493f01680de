#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/threads.h"
#include "data/formats/compression.h"
#include "data/pipeline/run.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

struct Scratch {
  std::string path = (fs::temp_directory_path() / fs::path("sinter_pipeline_" + std::to_string(::getpid()))).string();
  Scratch() {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Scratch() { fs::remove_all(path); }
};

// Documents of random sentences; every seventh repeats an earlier one, every tenth is cut short.
std::string make_documents(int64_t count) {
  static constexpr const char* kWords[] = {"the",  "house", "with", "river",   "and",   "people", "that", "walked",
                                           "have", "seen",  "of",   "morning", "light", "to",     "be",   "garden"};
  const base::CounterRng rng{7, 0};
  std::string out;
  auto sentence = [&](int64_t document, int64_t s) {
    std::string text;
    for (uint64_t w = 0; w < 12; ++w) {
      const uint32_t draw = rng.bits(static_cast<uint64_t>(document) * 10000 + static_cast<uint64_t>(s) * 100 + w);
      text +=
          std::string(w > 0 ? " " : "") + kWords[draw % 16] + std::string(1, static_cast<char>('a' + draw / 16 % 26));
    }
    return text + " the and. ";
  };
  for (int64_t d = 0; d < count; ++d) {
    const int64_t from = d % 7 == 6 ? d / 2 : d;
    std::string text;
    for (int64_t s = 0; s < (d % 10 == 9 ? 1 : 9); ++s) text += sentence(from, s);
    out += "{\"id\": \"" + std::to_string(d) + "\", \"text\": \"" + text + "\"}\n";
  }
  return out;
}

std::map<std::string, std::string> result_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const char* sub : {"documents", "columns", "aside"}) {
    for (const auto& entry : fs::directory_iterator(folder + "/" + sub))
      files[sub + entry.path().filename().string()] = base::read_file(entry.path().string());
  }
  files["report"] = base::read_file(folder + "/report.json");
  return files;
}

PipelineRecipe recipe_for(const std::string& input, const std::string& output) {
  return parse_pipeline("[run]\noutput = \"" + output + "\"\npart_bytes = 20000\n[[input]]\npath = \"" + input + "\"\n",
                        "test");
}

TEST(Pipeline, OneTwoAndFourThreadsWriteTheSameBytes) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(300) + "this is no JSON\n{\"id\": 3}\n");
  const int threads = base::num_threads();
  std::map<std::string, std::string> first;
  const auto self = comm::make_self();
  for (const int count : {1, 2, 4}) {
    base::set_num_threads(count);
    const std::string out = scratch.path + "/out" + std::to_string(count);
    const RunSummary summary = run_pipeline(recipe_for(scratch.path + "/in.jsonl", out), *self);
    EXPECT_EQ(summary.documents, 300);
    EXPECT_EQ(summary.bad_records, 2);
    EXPECT_GT(summary.dropped.at("dedup/exact_duplicate"), 10);
    EXPECT_GT(summary.kept, 100);
    if (count == 1) first = result_files(out);
    EXPECT_EQ(result_files(out), first) << count << " threads";
  }
  base::set_num_threads(threads);
}

TEST(Pipeline, ARunThatLostSomeResultsMakesThemAgain) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(200));
  const auto self = comm::make_self();
  const PipelineRecipe recipe = recipe_for(scratch.path + "/in.jsonl", scratch.path + "/out");
  run_pipeline(recipe, *self);
  const auto whole = result_files(scratch.path + "/out");
  size_t removed = 0;
  for (const auto& entry : fs::directory_iterator(scratch.path + "/out/work")) {
    if (entry.path().extension() == ".json" && entry.path().string().find("final") == std::string::npos &&
        removed++ % 2 == 0)
      fs::remove(entry.path());
  }
  for (const auto& entry : fs::directory_iterator(scratch.path + "/out/documents")) fs::remove(entry.path());
  for (const auto& entry : fs::directory_iterator(scratch.path + "/out/work")) {
    if (entry.path().string().find("final") != std::string::npos) fs::remove(entry.path());
  }
  const RunSummary again = run_pipeline(recipe, *self);
  EXPECT_GT(again.parts_done_before, 0);
  EXPECT_LT(again.parts_done_before, again.parts);
  EXPECT_EQ(result_files(scratch.path + "/out"), whole);
}

TEST(Pipeline, AnyFileOfTheResultsThatIsGoneIsMadeAgain) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(60));
  const auto self = comm::make_self();
  const std::string out = scratch.path + "/out";
  const PipelineRecipe recipe = recipe_for(scratch.path + "/in.jsonl", out);
  run_pipeline(recipe, *self);
  const auto whole = result_files(out);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(out)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  ASSERT_GT(files.size(), 10u);
  for (const fs::path& file : files) {
    fs::remove(file);
    run_pipeline(recipe, *self);
    EXPECT_EQ(result_files(out), whole) << file;
    EXPECT_TRUE(fs::exists(file)) << file;
  }
}

TEST(Pipeline, AnInputThatIsChangedAndChangedBackGivesItsFirstResult) {
  const Scratch scratch;
  const std::string input = scratch.path + "/in.jsonl", output = scratch.path + "/out", first = make_documents(120);
  const auto self = comm::make_self();
  base::write_file_atomic(input, first);
  run_pipeline(recipe_for(input, output), *self);
  const auto whole = result_files(output);
  base::write_file_atomic(input, first.substr(0, first.size() / 2));
  run_pipeline(recipe_for(input, output), *self);
  EXPECT_NE(result_files(output), whole);
  base::write_file_atomic(input, first);
  run_pipeline(recipe_for(input, output), *self);
  EXPECT_EQ(result_files(output), whole);
}

TEST(Pipeline, AnInputThatWasMendedLeavesNothingAside) {
  const Scratch scratch;
  const std::string input = scratch.path + "/in.jsonl", output = scratch.path + "/out";
  const auto self = comm::make_self();
  base::write_file_atomic(input, make_documents(20) + "this is no JSON\n");
  EXPECT_EQ(run_pipeline(recipe_for(input, output), *self).bad_records, 1);
  EXPECT_FALSE(fs::is_empty(output + "/aside"));
  base::write_file_atomic(input, make_documents(21));
  EXPECT_EQ(run_pipeline(recipe_for(input, output), *self).bad_records, 0);
  EXPECT_TRUE(fs::is_empty(output + "/aside"));
}

TEST(Pipeline, TheSizeOfAPartChangesNoDocument) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(150));
  const auto self = comm::make_self();
  auto kept = [&](const std::string& size) {
    const std::string out = scratch.path + "/out" + size;
    const PipelineRecipe recipe = parse_pipeline("[run]\noutput = \"" + out + "\"\npart_bytes = " + size +
                                                     "\n[[input]]\npath = \"" + scratch.path + "/in.jsonl\"\n",
                                                 "test");
    run_pipeline(recipe, *self);
    std::string all;
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(out + "/documents")) files.push_back(entry.path().string());
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) all += read_unpacked(file);
    return all;
  };
  EXPECT_EQ(kept("4000"), kept("1000000"));
}

TEST(Pipeline, AnUnknownKeyIsRefusedWithTheNearestOne) {
  try {
    parse_pipeline("[run]\noutput = \"x\"\n[dedup]\nbandz = 3\n[[input]]\npath = \"y\"\n", "p.toml");
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("dedup.bandz"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("'bands'"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sinter::data
