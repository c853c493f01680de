#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/threads.h"
#include "data/formats/compression.h"
#include "data/pipeline/cut.h"
#include "data/pipeline/run.h"
#include "data/rank/fasttext.h"
#include "data/text/hash.h"

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

TEST(Pipeline, ManyLittleFilesAreDoneTogether) {
  const Scratch scratch;
  fs::create_directories(scratch.path + "/in");
  base::write_file_atomic(scratch.path + "/in/000.jsonl", "");
  for (int i = 100; i < 160; ++i)
    base::write_file_atomic(scratch.path + "/in/" + std::to_string(i) + ".jsonl", make_documents(1 + i % 3));
  const auto self = comm::make_self();
  const RunSummary summary = run_pipeline(recipe_for(scratch.path + "/in", scratch.path + "/out"), *self);
  EXPECT_EQ(summary.documents, 120);
  EXPECT_LT(summary.parts, 12);
}

TEST(Pipeline, WeightsAreSharesOfTheTextThatIsLeft) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/a.jsonl", make_documents(400));
  base::write_file_atomic(scratch.path + "/b.jsonl", make_documents(900).substr(make_documents(400).size()));
  const std::string rules = "[filter]\ngopher_repetition=false\ngopher_quality=false\nc4=false\nfineweb=false\n";
  const auto self = comm::make_self();
  run_pipeline(parse_pipeline("[run]\noutput = \"" + scratch.path + "/out\"\n[[input]]\npath = \"" + scratch.path +
                                  "/a.jsonl\"\nweight = 3\n[[input]]\npath = \"" + scratch.path +
                                  "/b.jsonl\"\n[mix]\nby = \"weights\"\n" + rules,
                              "test"),
               *self);
  const size_t a = read_unpacked(scratch.path + "/out/documents/00000.jsonl.zst").size(),
               b = read_unpacked(scratch.path + "/out/documents/00001.jsonl.zst").size();
  EXPECT_NEAR(static_cast<double>(a) / static_cast<double>(b), 3, .4);
}

TEST(Pipeline, AnotherShareOrMixReadsNoInputAgain) {
  const Scratch scratch;
  const std::string input = scratch.path + "/in.jsonl", output = scratch.path + "/out";
  base::write_file_atomic(input, make_documents(200));
  const auto self = comm::make_self();
  const RunSummary first = run_pipeline(recipe_for(input, output), *self);
  PipelineRecipe twice = parse_pipeline(
      "[run]\noutput = \"" + output + "\"\npart_bytes = 20000\n[[input]]\npath = \"" + input + "\"\nepochs = 2\n",
      "test");
  const RunSummary second = run_pipeline(twice, *self);
  EXPECT_EQ(second.parts_done_before, second.parts);
  EXPECT_EQ(second.kept, 2 * first.kept);
  EXPECT_EQ(run_pipeline(recipe_for(input, output), *self).kept, first.kept);
}

// Results of a part are read back a piece of a megabyte at a time.
TEST(Pipeline, APartOfManyMegabytesKeepsEveryDocument) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(4000));
  PipelineRecipe recipe = parse_pipeline(
      "[run]\noutput = \"" + scratch.path + "/out\"\n[[input]]\npath = \"" + scratch.path + "/in.jsonl\"\n", "test");
  const auto self = comm::make_self();
  const RunSummary summary = run_pipeline(recipe, *self);
  EXPECT_EQ(summary.documents, 4000);
  int64_t dropped = 0;
  for (const auto& [reason, count] : summary.dropped) dropped += count;
  EXPECT_EQ(summary.kept + dropped, 4000);
  EXPECT_GT(summary.kept, 2000);
  // A file of work that lost its end is told, not taken for the whole.
  for (const auto& entry : fs::directory_iterator(scratch.path + "/out/work")) {
    if (!entry.path().string().ends_with(".docs.zst")) continue;
    fs::resize_file(entry.path(), entry.file_size() / 2);
  }
  for (const char* sub : {"documents", "columns"}) fs::remove_all(scratch.path + "/out/" + sub + "/00000.jsonl.zst");
  try {
    if (run_pipeline(recipe, *self).kept != summary.kept) FAIL() << "documents were lost in silence";
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("remove the folder's work/"), std::string::npos) << e.what();
  }
}

TEST(Pipeline, TheManifestNamesEveryResultWithItsDigest) {
  const Scratch scratch;
  const std::string output = scratch.path + "/out";
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(100));
  const auto self = comm::make_self();
  const RunSummary summary = run_pipeline(recipe_for(scratch.path + "/in.jsonl", output), *self);
  const nlohmann::json manifest = nlohmann::json::parse(base::read_file(output + "/manifest.json"));
  int64_t documents = 0;
  size_t files = 0;
  for (const nlohmann::json& part : manifest["parts"]) {
    documents += part["documents"].get<int64_t>();
    EXPECT_EQ(part["inputs"][0]["file"], scratch.path + "/in.jsonl");
    for (const nlohmann::json& file : part["files"]) {
      EXPECT_EQ(sha256_hex(base::read_file(output + "/" + file["file"].get<std::string>())), file["sha256"]);
      ++files;
    }
  }
  EXPECT_EQ(documents, summary.kept);
  EXPECT_EQ(files, static_cast<size_t>(summary.parts));
}

TEST(Pipeline, EveryReasonHasSamplesAndBadRecordsAreCountedByKind) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(300) + "no JSON\n{\"id\": 3}\nno JSON\n");
  const auto self = comm::make_self();
  const RunSummary summary = run_pipeline(recipe_for(scratch.path + "/in.jsonl", scratch.path + "/out"), *self);
  const nlohmann::json report = nlohmann::json::parse(base::read_file(scratch.path + "/out/report.json"));
  for (const auto& [reason, count] : summary.dropped) EXPECT_FALSE(report["samples"][reason].empty()) << reason;
  EXPECT_EQ(report["samples"]["kept"].size(), 5u);
  int64_t bad = 0;
  for (const auto& [what, count] : report["bad_reasons"].items()) bad += count.get<int64_t>();
  EXPECT_EQ(bad, 3);
  EXPECT_EQ(report["bad_reasons"].size(), 2u) << report["bad_reasons"].dump();
}

TEST(Pipeline, WhatARecipeNamesWronglyIsToldBeforeTheWork) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(30));
  const auto self = comm::make_self();
  PipelineRecipe recipe = recipe_for(scratch.path + "/in.jsonl", scratch.path + "/out");
  recipe.tokenizer = scratch.path + "/none";
  EXPECT_THROW(run_pipeline(recipe, *self), base::Error);
  EXPECT_FALSE(fs::exists(scratch.path + "/out/report.json"));
  const std::string lines = scratch.path + "/labels.bin";
  FastTextTraining training;
  training.dim = 4;
  training.bucket = 100;
  train_fasttext({"__label__en the house", "__label__deu_Latn das haus"}, training, lines);
  recipe = recipe_for(scratch.path + "/in.jsonl", scratch.path + "/out");
  recipe.language_model = lines;
  recipe.languages = {"english"};
  EXPECT_THROW(run_pipeline(recipe, *self), base::Error);
  recipe.languages = {"en", "deu_Latn"};
  EXPECT_NO_THROW(run_pipeline(recipe, *self));
  recipe.nsfw_model = lines;
  recipe.nsfw_label = "__label__fr";
  EXPECT_THROW(run_pipeline(recipe, *self), base::Error);
}

TEST(Pipeline, ADocumentThatCannotBeScoredIsSetAside) {
  const Scratch scratch;
  base::write_file_atomic(scratch.path + "/in.jsonl", make_documents(30));
  PipelineRecipe recipe = recipe_for(scratch.path + "/in.jsonl", scratch.path + "/out");
  std::atomic<int> calls{0};
  recipe.scorer = [&](std::string_view) -> double {
    if (calls++ == 3) throw base::Error("no score");
    return 1;
  };
  const auto self = comm::make_self();
  const RunSummary summary = run_pipeline(recipe, *self);
  EXPECT_EQ(summary.bad_records, 1);
  EXPECT_EQ(summary.documents, 29);
}

TEST(Cut, DocumentsAreChosenByColumnsBesideThemAndByTheirOwnFields) {
  const Scratch scratch;
  std::string documents, columns;
  for (int i = 0; i < 20; ++i) {
    const std::string id = "\"id\":\"d" + std::to_string(i) + "\"";
    if (i % 2 == 0) documents += "{" + id + ",\"text\":\"x\",\"lang\":\"" + (i < 10 ? "en" : "de") + "\"}\n";
    columns += "{" + id + ",\"words\":" + (i == 4 ? "null" : std::to_string(i)) + "}\n";
  }
  base::write_file_atomic(scratch.path + "/d.jsonl", documents);
  base::write_file_atomic(scratch.path + "/c.jsonl", columns);
  auto cut = [&](std::vector<std::string> conditions, std::vector<std::string> shares) {
    CutOptions options;
    options.columns = {scratch.path + "/c.jsonl"};
    for (const std::string& c : conditions) options.conditions.push_back(parse_condition(c));
    for (const std::string& c : shares) options.shares.push_back(parse_share(c));
    return cut_documents({scratch.path + "/d.jsonl"}, scratch.path + "/o.jsonl", options).written;
  };
  EXPECT_EQ(cut({"words >= 2"}, {}), 8);  // all but 0 and the one without a number
  EXPECT_EQ(cut({"words>=2", "lang == en"}, {}), 3);
  EXPECT_EQ(cut({"lang != en"}, {}), 5);
  EXPECT_EQ(cut({}, {"words=.5"}), 5);
  EXPECT_EQ(cut({"lang == de"}, {"-words=.4"}), 2);
  EXPECT_NE(base::read_file(scratch.path + "/o.jsonl").find("\"d12\""), std::string::npos);
  EXPECT_THROW(cut({"wordz > 1"}, {}), base::Error);
  EXPECT_THROW(cut({"words"}, {}), base::UsageError);
  EXPECT_THROW(cut({}, {"words=2"}), base::UsageError);
  base::write_file_atomic(scratch.path + "/d.jsonl", "{\"id\":\"unknown\",\"text\":\"x\"}\n");
  EXPECT_THROW(cut({"words > 1"}, {}), base::Error);
}

TEST(Pipeline, LanguagesToKeepNeedAModel) {
  EXPECT_THROW(
      parse_pipeline("[run]\noutput = \"x\"\n[language]\nkeep = [\"en\"]\n[[input]]\npath = \"y\"\n", "p.toml"),
      base::Error);
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
