#include "data/tokenize.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/formats/compression.h"
#include "data/token_shard.h"
#include "tokenizer/train.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

tokenizer::Tokenizer make_tokenizer() {
  const std::vector<std::string_view> texts{"the cat sat on the mat. the dog sat on the cat."};
  tokenizer::TrainOptions options;
  options.vocab_size = 280;
  options.special_tokens = {"<|endoftext|>"};
  return tokenizer::train_bpe(texts, options).tokenizer;
}

class Tokenize : public ::testing::Test {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::error);
    folder_ = fs::temp_directory_path() / ("sinter_tokenize_" + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string write(const std::string& name, const std::string& content) {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return (folder_ / name).string();
  }
  std::vector<std::string> documents_of(const std::string& path) {
    const TokenShard shard(path);
    std::vector<std::string> out;
    for (int64_t d = 0; d < shard.num_documents(); ++d) {
      std::vector<int32_t> ids(static_cast<size_t>(shard.document_begin(d + 1) - shard.document_begin(d)));
      shard.read(shard.document_begin(d), static_cast<int64_t>(ids.size()), ids.data());
      out.push_back(tokenizer_.decode(ids));
    }
    return out;
  }
  template <class Work>
  static std::string message_of(Work work) {
    try {
      work();
    } catch (const base::Error& e) {
      return e.what();
    }
    return "";
  }
  static TokenizeOptions without_marks() {
    TokenizeOptions options;
    options.add_bos = options.add_eos = false;
    return options;
  }
  const TokenizeOptions no_marks_ = without_marks();
  fs::path folder_;
  tokenizer::Tokenizer tokenizer_ = make_tokenizer();
};

TEST_F(Tokenize, DocumentsComeBackWithTheirBorders) {
  const std::string text = write("a.txt", "the cat<|endoftext|>\n \n<|endoftext|>a dog\n");
  const std::string lines = write("b.jsonl", "{\"text\": \"one\"}\n\n{\"text\": \"two\", \"id\": 3}\n");
  const TokenizeResult result = tokenize_files({text, lines}, (folder_ / "out.tok").string(), tokenizer_, {});
  ASSERT_EQ(result.shards.size(), 1u);
  EXPECT_EQ(result.num_documents, 4);
  const std::string e = "<|endoftext|>";
  EXPECT_EQ(documents_of(result.shards[0]),
            (std::vector<std::string>{e + "the cat" + e, e + "a dog\n" + e, e + "one" + e, e + "two" + e}));
}

TEST_F(Tokenize, EndingsCountInAnyCaseAndBytesOfZeroAreNoText) {
  const std::string line = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";
  for (const char* name : {"a.JSONL", "a.ndjson"}) {
    EXPECT_EQ(tokenize_files({write(name, line)}, (folder_ / "out").string(), tokenizer_, {}).num_documents, 2) << name;
  }
  EXPECT_THROW(tokenize_files({write("b.txt", std::string("a\0b", 3))}, (folder_ / "out").string(), tokenizer_, {}),
               base::Error);
}

TEST_F(Tokenize, ManyTokensFillSeveralShardsWithWholeDocuments) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the cat sat<|endoftext|>";
  TokenizeOptions options;
  options.max_shard_tokens = 60;
  const TokenizeResult result = tokenize_files({write("a.txt", text)}, (folder_ / "out").string(), tokenizer_, options);
  EXPECT_GT(result.shards.size(), 2u);
  int64_t documents = 0;
  for (const std::string& shard : result.shards) documents += TokenShard(shard).num_documents();
  EXPECT_EQ(documents, 50);
}

TEST_F(Tokenize, AShorterTextLeavesNoShardsOfTheLongerOneBefore) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the cat sat<|endoftext|>";
  TokenizeOptions options;
  options.max_shard_tokens = 60;
  const std::string output = (folder_ / "out").string(), neighbour = write("out-other.tok", "of somebody else");
  const TokenizeResult before = tokenize_files({write("a.txt", text)}, output, tokenizer_, options);
  ASSERT_GT(before.shards.size(), 2u);
  const TokenizeResult after = tokenize_files({write("a.txt", "the cat sat")}, output, tokenizer_, options);
  ASSERT_EQ(after.shards.size(), 1u);
  for (const std::string& shard : before.shards) EXPECT_EQ(fs::exists(shard), shard == after.shards[0]) << shard;
  EXPECT_TRUE(fs::exists(neighbour));
}

TEST_F(Tokenize, ATextThatEndsInAnErrorLeavesTheShardsBeforeItAsTheyWere) {
  auto lines = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += "{\"text\": \"" + text + "\"}\n";
    return out;
  };
  TokenizeOptions options;
  options.max_shard_tokens = 60;
  const std::string output = (folder_ / "out").string();
  const TokenizeResult before =
      tokenize_files({write("a.jsonl", lines("the cat sat", 50))}, output, tokenizer_, options);
  ASSERT_GT(before.shards.size(), 2u);
  std::vector<std::string> contents;
  for (const std::string& shard : before.shards) contents.push_back(base::read_file(shard));
  // Long enough that several groups of documents are tokenized and several shards full before the bad line.
  const std::string bad = write("b.jsonl", lines(std::string(1 << 20, 'x') + " the dog ran", 40) + "no JSON\n");
  EXPECT_THROW(tokenize_files({bad}, output, tokenizer_, options), base::Error);
  for (size_t i = 0; i < contents.size(); ++i) EXPECT_EQ(base::read_file(before.shards[i]), contents[i]);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), fs::directory_iterator()), 2 + std::ssize(before.shards));
}

TEST_F(Tokenize, ABadLineIsNamed) {
  const std::string lines = write("b.jsonl", "{\"text\": \"one\"}\n{\"txt\": 1}\n");
  try {
    tokenize_files({lines}, (folder_ / "out").string(), tokenizer_, {});
    FAIL();
  } catch (const base::Error& e) {
    EXPECT_NE(std::string(e.what()).find("line 2"), std::string::npos) << e.what();
  }
}

TEST_F(Tokenize, AFileWithoutTextIsNamed) {
  const std::string empty = write("empty.txt", " \n");
  const std::string said = message_of([&] { tokenize_files({empty}, (folder_ / "out").string(), tokenizer_, {}); });
  EXPECT_NE(said.find("'" + empty + "'"), std::string::npos) << said;
  const std::string cache = (folder_ / "cache").string();
  const std::string prepared = message_of([&] { prepare_sources({{empty, 1.0}}, cache, &tokenizer_, {}); });
  EXPECT_NE(prepared.find("'" + empty + "'"), std::string::npos) << prepared;
}

TEST_F(Tokenize, AnOutputWithoutAFileNameIsRefused) {
  const std::string text = write("a.txt", "the cat");
  for (const char* name : {"/", "/.tok", "/.", "/.."}) {
    EXPECT_THROW(tokenize_files({text}, folder_.string() + name, tokenizer_, {}), base::UsageError) << name;
  }
  EXPECT_FALSE(fs::exists(folder_ / ".tok"));
  EXPECT_EQ(tokenize_files({text}, (folder_ / ".hidden").string(), tokenizer_, {}).num_documents, 1);
}

TEST_F(Tokenize, TextSourcesAreTokenizedOnceAndAgainWhenTheyChange) {
  const std::string text = write("a.txt", "the cat sat on the mat"), cache = (folder_ / "cache").string();
  const auto first = prepare_sources({{text, 2.0}}, cache, &tokenizer_, {});
  const auto written = fs::last_write_time(first[0].path);
  const auto again = prepare_sources({{text, 2.0}}, cache, &tokenizer_, {});
  EXPECT_EQ(first[0].path, again[0].path);
  EXPECT_EQ(fs::last_write_time(again[0].path), written);
  EXPECT_EQ(again[0].weight, 2.0);
  // The same bytes read another way are another text.
  const std::string lines = write("a.jsonl", "{\"text\": \"the cat\"}\n"),
                    plain = write("a.txt", base::read_file(lines));
  EXPECT_NE(prepare_sources({{lines, 1.0}}, cache, &tokenizer_, {})[0].path,
            prepare_sources({{plain, 1.0}}, cache, &tokenizer_, {})[0].path);
  tokenizer::Tokenizer other = make_tokenizer();
  other.set_special_ids({.eos = 5});
  EXPECT_NE(prepare_sources({{lines, 1.0}}, cache, &other, {})[0].path,
            prepare_sources({{lines, 1.0}}, cache, &tokenizer_, {})[0].path);
  write("a.txt", "the dog");
  EXPECT_NE(prepare_sources({{text, 2.0}}, cache, &tokenizer_, {})[0].path, first[0].path);
  EXPECT_THROW(prepare_sources({{text, 1.0}}, cache, nullptr, {}), base::Error);
}

TEST_F(Tokenize, WhatIsNoTextIsRefused) {
  const std::pair<const char*, std::string> files[] = {
      {"a.txt", "BZh9 zipped"}, {"b.txt", "PK\x03\x04 and more"}, {"c.txt", std::string("\xff\xfet\0", 4)},
      {"d.tok", "the cat"},     {"e.txt", "PAR1 the cat"},        {"f.txt", "%PDF-1.4 the cat"}};
  for (const auto& [name, content] : files) {
    const std::string error =
        message_of([&] { tokenize_files({write(name, content)}, (folder_ / "out").string(), tokenizer_, {}); });
    EXPECT_NE(error.find(name), std::string::npos) << name << ": " << error;
    EXPECT_NE(error.find("expected"), std::string::npos) << error;
  }
}

TEST_F(Tokenize, TextThatIsNotUtf8IsTakenWithAWarning) {
  auto said = [](const std::string& text) {
    base::set_log_level(base::LogLevel::warning);
    testing::internal::CaptureStderr();
    check_is_text(text, "a.txt");
    base::set_log_level(base::LogLevel::error);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(said("caf\xe9").find("'a.txt' is not UTF-8"), std::string::npos);
  EXPECT_EQ(said("caf\xc3\xa9"), "");
  std::string cut(65535, 'x');  // what is looked at ends inside a letter
  EXPECT_EQ(said(cut + "\xc3\xa9 and more"), "");
}

TEST_F(Tokenize, FoldersPatternsAndCompressedFilesGiveTheSameDocumentsAsPlainText) {
  fs::create_directories(folder_ / "texts/below");
  write("texts/a.txt", "one<|endoftext|>two");
  write("texts/b.md.gz", pack_gzip("three"));
  write("texts/below/c.jsonl.zst", pack_zstd("{\"text\": \"four\"}\n{\"text\": \"five\"}\n"));
  write("texts/below/d.json", "[{\"text\": \"six\"}, \"seven\"]");
  write("texts/e.json", "{\"text\": \"eight\"}\n{\"text\": \"nine\"}");
  write("texts/f.csv", "id,text\n1,ten\n2,\"eleven, twelve\"\n");
  write("texts/picture.png", "no text");
  const std::string folder = (folder_ / "texts").string();
  auto documents = [&](const std::vector<std::string>& inputs) {
    return documents_of(tokenize_files(inputs, (folder_ / "out").string(), tokenizer_, no_marks_).shards[0]);
  };
  const std::vector<std::string> all{"one",   "two",   "three", "four", "five",          "six",
                                     "seven", "eight", "nine",  "ten",  "eleven, twelve"};
  EXPECT_EQ(documents({folder}), all);
  EXPECT_EQ(documents({folder + "/*.txt", folder + "/b.*"}), (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_TRUE(stands_for_text(folder));
  EXPECT_TRUE(stands_for_text(folder + "/*.gz"));
  EXPECT_FALSE(stands_for_text(folder_.string() + "/*.png"));
  EXPECT_NE(message_of([&] { list_text_files(folder + "/*.none"); }).find("pattern"), std::string::npos);
  const auto prepared = prepare_sources({{folder, 1.0}}, (folder_ / "cache").string(), &tokenizer_, {});
  EXPECT_EQ(TokenShard(prepared[0].path).num_documents(), 11);
}

TEST_F(Tokenize, AFieldThatIsNotThereNamesThoseThatAre) {
  const std::string lines = write("b.jsonl", "{\"content\": \"one\", \"id\": 3}\n");
  const std::string said = message_of([&] { tokenize_files({lines}, (folder_ / "out").string(), tokenizer_, {}); });
  EXPECT_NE(said.find("--text-key"), std::string::npos) << said;
  EXPECT_NE(said.find("'content'"), std::string::npos) << said;
}

TEST_F(Tokenize, HalfWrittenShardsOfKilledRunsLeaveTheCacheAndThoseOfLivingOnesStay) {
  const std::string text = write("a.txt", "the cat sat on the mat"), cache = (folder_ / "cache").string();
  fs::create_directories(cache);
  const std::string other = write("cache/notes.txt.tmp.1", "no shard"), left = write("cache/b-0.tok.tmp.1", "half");
  TokenShardWriter living(cache + "/c-0.tok", 10, 1);
  const auto found = prepare_sources({{text, 1.0}}, cache, &tokenizer_, {});
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(other));
  living.add_document(std::vector<int32_t>{1, 2, 3});
  living.commit();
  EXPECT_EQ(TokenShard(cache + "/c-0.tok").num_tokens(), 3);
  write("cache/b-0.tok.tmp.1", "half");
  EXPECT_EQ(prepare_sources({{text, 1.0}}, cache, &tokenizer_, {})[0].path, found[0].path);
  EXPECT_FALSE(fs::exists(left)) << "though nothing had to be written";
}

}  // namespace
}  // namespace sinter::data
