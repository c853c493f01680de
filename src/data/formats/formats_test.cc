#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "data/dedup/exact.h"
#include "data/extract/extract.h"
#include "data/formats/charset.h"
#include "data/formats/compression.h"
#include "data/formats/document.h"
#include "data/formats/line_reader.h"
#include "data/formats/warc.h"
#include "data/rank/fasttext.h"

namespace sinter::data {
namespace {

namespace fs = std::filesystem;

struct ScratchFile {
  std::string path;
  ScratchFile(const std::string& name, std::string_view content)
      : path((fs::temp_directory_path() / (std::to_string(::getpid()) + name)).string()) {
    base::write_file_atomic(path, content);
  }
  ~ScratchFile() { fs::remove(path); }
};

struct ReadResult {
  std::vector<Document> documents;
  std::vector<BadRecord> bad;
};
ReadResult read_file(const std::string& path, const ReadOptions& options = {}, uint64_t part_bytes = UINT64_MAX) {
  ReadResult result;
  for (const FilePart& part : list_parts(path, "s", part_bytes)) {
    read_part(part, options,
              {[&](Document&& d) { result.documents.push_back(std::move(d)); },
               [&](BadRecord&& b) { result.bad.push_back(std::move(b)); }});
  }
  return result;
}

TEST(Documents, EveryCutOfAFileGivesTheSameDocuments) {
  std::string lines;
  for (int i = 0; i < 60; ++i)
    lines += "{\"text\": \"number " + std::to_string(i) + std::string(static_cast<size_t>(i % 7), 'x') + "\"}\n";
  const ScratchFile file("cut.jsonl", lines);
  for (const uint64_t size : {1, 7, 31, 100, 5000}) {
    const ReadResult read = read_file(file.path, {}, size);
    ASSERT_EQ(read.documents.size(), 60u) << size;
    for (size_t i = 0; i < 60; ++i)
      EXPECT_EQ(read.documents[i].text.substr(0, 7), ("number " + std::to_string(i)).substr(0, 7));
  }
}

TEST(Documents, CompressedAndPlainLinesAreTheSame) {
  const std::string lines = "{\"text\": \"one\"}\n\n{\"text\": \"two\"}\n{\"text\": \"three\"}";
  const ScratchFile gz("a.jsonl.gz", pack_gzip(lines)),
      two("b.jsonl.gz", pack_gzip(lines.substr(0, 20)) + pack_gzip(lines.substr(20))),
      zst("c.jsonl.zst", pack_zstd(lines));
  for (const ScratchFile* file : {&gz, &two, &zst}) {
    const ReadResult read = read_file(file->path);
    ASSERT_EQ(read.documents.size(), 3u) << file->path;
    EXPECT_EQ(read.documents[2].text, "three");
    EXPECT_TRUE(read.bad.empty());
  }
}

TEST(Documents, AGiantLineIsSetAsideAndReadingGoesOn) {
  ReadOptions options;
  options.max_record_bytes = 2000;
  const std::string lines =
      "{\"text\": \"one\"}\n{\"text\": \"" + std::string(3 << 20, 'x') + "\"}\n{\"text\": \"two\"}\n";
  const ScratchFile plain("giant.jsonl", lines), packed("giant.jsonl.gz", pack_gzip(lines)),
      zst("giant.jsonl.zst", pack_zstd(lines));
  for (const ScratchFile* file : {&plain, &packed, &zst}) {
    const ReadResult read = read_file(file->path, options);
    ASSERT_EQ(read.documents.size(), 2u) << file->path;
    EXPECT_EQ(read.documents[1].text, "two");
    EXPECT_EQ(read.bad.size(), 1u);
  }
}

TEST(Documents, TruncatedAndDamagedCompressionIsNamed) {
  std::string lines;
  for (int i = 0; i < 5000; ++i) lines += "{\"text\": \"line " + std::to_string(i * 7919) + "\"}\n";
  const std::string packed = pack_gzip(lines);
  std::string damaged = packed;
  for (size_t i = packed.size() / 2; i < packed.size() / 2 + 40; ++i) damaged[i] = static_cast<char>(damaged[i] ^ 0x5a);
  const ScratchFile cut("cut.jsonl.gz", packed.substr(0, packed.size() / 2)), wrong("wrong.jsonl.gz", damaged);
  for (const ScratchFile* file : {&cut, &wrong}) {
    const ReadResult read = read_file(file->path);
    EXPECT_GT(read.documents.size(), 10u) << file->path;
    EXPECT_LT(read.documents.size(), 5000u);
    EXPECT_GE(read.bad.size(), 1u) << file->path;
  }
}

TEST(Documents, AZipBombIsBounded) {
  const std::string bomb = pack_gzip(std::string(60 << 20, 'a'), 6);
  EXPECT_LT(bomb.size(), 1u << 20);
  const Unpacked unpacked = unpack_gzip_member(bomb, 1 << 20);
  EXPECT_TRUE(unpacked.is_too_large);
  EXPECT_LT(unpacked.bytes.size(), 2u << 20);
  const ScratchFile file("bomb.jsonl.gz", bomb);
  ReadOptions options;
  options.max_record_bytes = 1 << 20;
  const ReadResult read = read_file(file.path, options);
  EXPECT_TRUE(read.documents.empty());
  EXPECT_EQ(read.bad.size(), 1u);
}

TEST(Documents, CsvFieldsMayHoldCommasQuotesAndLineBreaks) {
  const ScratchFile file("a.csv", "id,text,url\n1,\"a, \"\"b\"\"\nc\",http://x\n2,plain,http://y\n3,short\n");
  const ReadResult read = read_file(file.path);
  ASSERT_EQ(read.documents.size(), 2u);
  EXPECT_EQ(read.documents[0].text, "a, \"b\"\nc");
  EXPECT_EQ(read.documents[1].url, "http://y");
  EXPECT_EQ(read.bad.size(), 1u);
}

TEST(Warc, RangesGiveEveryRecordOnce) {
  std::string plain, packed;
  for (int i = 0; i < 40; ++i) {
    const std::string block = "body " + std::to_string(i) + std::string(static_cast<size_t>(i * 13 % 50), 'x');
    const std::string record = "WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a/" + std::to_string(i) +
                               "\r\nContent-Length: " + std::to_string(block.size()) + "\r\n\r\n" + block + "\r\n\r\n";
    plain += record;
    packed += pack_gzip(record);
  }
  for (const std::string& bytes : {plain, packed}) {
    for (const uint64_t size : {uint64_t{64}, uint64_t{100}, uint64_t{777}, uint64_t{1} << 20}) {
      std::vector<std::string> urls;
      for (uint64_t begin = 0; begin < bytes.size(); begin += size) {
        read_warc(bytes, begin, begin + size, {[&](WarcRecord& r) { return urls.push_back(r.url()), true; }, {}});
      }
      ASSERT_EQ(urls.size(), 40u) << size;
      for (size_t i = 0; i < 40; ++i) EXPECT_EQ(urls[i], "http://a/" + std::to_string(i));
    }
  }
}

TEST(Extract, DeepNestingAndHalfTagsEndInTime) {
  for (const char* tag : {"<div>", "<b>", "<table><tr><td>", "<p>", "<font><i>"}) {
    std::string html = "<html><body>";
    for (int i = 0; i < 60000; ++i) html += tag;
    html += "The text at the bottom of a well, which is long enough to be read, and has commas.";
    const ExtractedPage page = extract_page(html);
    EXPECT_LT(page.text.size(), html.size());
  }
  EXPECT_EQ(extract_page("").text, "");
  EXPECT_EQ(extract_page("<").text.size() <= 1, true);
}

TEST(Extract, TagsOfManyAttributesAndWidePagesEndInTime) {
  std::string attributes = "<html><body ", removed = "<html><body>", open = "<html><body>";
  for (int i = 0; i < 200000; ++i) {
    attributes += "a" + std::to_string(i) + "=x ";
    removed += "<i hidden>x</i>";
    open += "<a";
  }
  EXPECT_NE(extract_page(attributes + "><p>The text behind.").text.find("The text behind."), std::string::npos);
  const std::string article = "<p>One paragraph with commas, long enough to be read, and kept as it is in the end.</p>";
  EXPECT_NE(extract_page(removed + article).text.find("One paragraph"), std::string::npos);
  EXPECT_LT(extract_page(open).text.size(), open.size());
  // What a script says is no tag.
  std::string script = "<html><body><script>if (a<b) f(";
  for (int i = 0; i < 5000; ++i) script += " x" + std::to_string(i) + ",";
  EXPECT_EQ(extract_page(script + "0)</script>" + article).text.find("x77"), std::string::npos);
}

TEST(Charset, DeclaredAndDetectedCharsetsGiveTheSameText) {
  Decoded russian;
  const std::string koi =
      "\xf3\xd4\xc1\xd2\xd9\xca \xd2\xd9\xc2\xc1\xcb \xcb\xc1\xd6\xc4\xcf\xc5 \xd5\xd4\xd2\xcf "
      "\xd7\xd9\xc8\xcf\xc4\xc9\xcc \xd7 \xcd\xcf\xd2\xc5";
  EXPECT_EQ(decode_page(koi, "koi8-r").text, decode_page(koi, "").text);
  EXPECT_EQ(decode_page("\xef\xbb\xbfhello", "").text, "hello");
  EXPECT_EQ(decode_page("caf\xc3\xa9", "iso-8859-1").text, "caf\xc3\xa9");
}

TEST(SuffixArray, EqualsTheSortedSuffixes) {
  for (const std::string& text : {std::string("banana"), std::string("mississippi"), std::string("aaaaaaa"),
                                  std::string("a"), std::string("abcabcabcabd\xff\x01")}) {
    std::vector<int32_t> want(text.size());
    for (size_t i = 0; i < text.size(); ++i) want[i] = static_cast<int32_t>(i);
    std::sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
      return text.substr(static_cast<size_t>(a)) < text.substr(static_cast<size_t>(b));
    });
    EXPECT_EQ(suffix_array(text), want) << text;
  }
}

TEST(SuffixArray, RepeatedSubstringsAreFoundAndTheFirstStays) {
  const std::string shared = "the same long passage that two documents have in common";
  const std::string a = "first " + shared + " end", b = "second one " + shared + " other end";
  const auto spans = find_repeated_substrings({a, b}, 30);
  EXPECT_TRUE(spans[0].empty());
  ASSERT_EQ(spans[1].size(), 1u);
  const std::string cut = b.substr(spans[1][0].begin, spans[1][0].end - spans[1][0].begin);
  EXPECT_NE(cut.find(shared), std::string::npos);
}

TEST(FastTextModel, TrainingGivesAModelThatFastTextsFormatHolds) {
  std::vector<std::string> lines;
  for (int i = 0; i < 200; ++i)
    lines.push_back(i % 2 ? "__label__good careful words about rivers and science " + std::to_string(i)
                          : "__label__bad buy cheap now click here " + std::to_string(i));
  const std::string path = (fs::temp_directory_path() / (std::to_string(::getpid()) + "model.bin")).string();
  FastTextTraining training;
  training.dim = 8;
  training.bucket = 1000;
  training.lr = .5;
  train_fasttext(lines, training, path);
  const std::string bytes = base::read_file(path);
  const FastText model = FastText::load(path);
  EXPECT_EQ(model.predict("science and rivers", 1)[0].label, "__label__good");
  EXPECT_EQ(model.predict("click here cheap", 1)[0].label, "__label__bad");
  train_fasttext(lines, training, path);
  EXPECT_EQ(base::read_file(path), bytes);
  for (size_t size : {size_t{0}, size_t{7}, size_t{60}, bytes.size() / 2, bytes.size() - 1})
    EXPECT_THROW(FastText::from_bytes(bytes.substr(0, size), "cut"), base::Error);
  fs::remove(path);
}

}  // namespace
}  // namespace sinter::data
