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
  for (const FilePart& part : list_parts(path, "s", part_bytes, options)) {
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

TEST(Documents, LinesThatAreNotJsonAreCountedWithAReasonInNoLibrarysWords) {
  const std::pair<std::string, std::string> cases[] = {
      {"nothing", "not JSON: a bare word that is not true, false or null"},
      {"{\"text\": \"a}", "not JSON: a text has no closing quote"},
      {"{\"text\": 1", "not JSON: a bracket, comma, colon or quote is missing or too many"},
      {"{\"text\": \"\xff\"}", "not JSON: the bytes are not UTF-8"},
      {"[1]", "not a JSON object"},
  };
  for (const auto& [line, reason] : cases) {
    const ReadResult read = read_file(ScratchFile("wrong.jsonl", line + "\n{\"text\": \"good\"}\n").path);
    EXPECT_EQ(read.documents.size(), 1u) << line;
    ASSERT_EQ(read.bad.size(), 1u) << line;
    EXPECT_EQ(read.bad[0].what, reason) << line;
  }
}

TEST(Documents, EveryCutOfATextFileGivesTheSameDocuments) {
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += "story " + std::to_string(i) + std::string(static_cast<size_t>(i % 5), '\n') + "<|endoftext|>\n";
  const ScratchFile plain("cut.txt", text), packed("cut.txt.zst", pack_zstd(text));
  const ReadResult whole = read_file(plain.path);
  ASSERT_EQ(whole.documents.size(), 40u);
  EXPECT_EQ(whole.documents[1].id, fs::path(plain.path).filename().string() + ":20");
  for (const uint64_t size : {1, 3, 13, 64, 500}) {
    const ReadResult cut = read_file(plain.path, {}, size);
    ASSERT_EQ(cut.documents.size(), 40u) << size;
    for (size_t i = 0; i < 40; ++i) EXPECT_EQ(cut.documents[i].text, whole.documents[i].text);
  }
  const ReadResult unpacked = read_file(packed.path);
  ASSERT_EQ(unpacked.documents.size(), 40u);
  EXPECT_EQ(unpacked.documents[39].text, whole.documents[39].text);
}

TEST(Documents, ASeparatorThatOverlapsItselfIsReadFromTheBeginning) {
  EXPECT_TRUE(can_be_cut("<|endoftext|>"));
  EXPECT_FALSE(can_be_cut("\n\n"));
  EXPECT_FALSE(can_be_cut(""));
  const ScratchFile file("overlap.txt", "one\n\n\ntwo\n\n\n\nthree");
  ReadOptions options;
  options.separator = "\n\n";
  for (const uint64_t size : {1, 4, 100}) EXPECT_EQ(read_file(file.path, options, size).documents.size(), 3u) << size;
}

TEST(Documents, AGiantTextIsSetAsideAndReadingGoesOn) {
  const std::string text = "small<|endoftext|>" + std::string(100000, 'x') + "<|endoftext|>last";
  const ScratchFile plain("giant.txt", text), packed("giant.txt.gz", pack_gzip(text));
  ReadOptions options;
  options.max_record_bytes = 2000;
  for (const std::string& path : {plain.path, packed.path}) {
    const ReadResult read = read_file(path, options);
    ASSERT_EQ(read.documents.size(), 2u) << path;
    EXPECT_EQ(read.documents[1].text, "last");
    ASSERT_EQ(read.bad.size(), 1u);
    EXPECT_EQ(read.bad[0].what, "a document longer than 2000 bytes");
  }
}

TEST(Documents, AJsonFileMayBeOneList) {
  const ScratchFile list("list.json", "[\n  {\"text\": \"one\"},\n  {\"text\": \"two\"}, 3\n]\n"),
      one("one.json", "{\n  \"text\": \"only\"\n}\n"), lines("lines.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n"),
      broken("broken.json", "[{\"text\": \"one\"},");
  for (const uint64_t size : {uint64_t{5}, UINT64_MAX}) {
    const ReadResult read = read_file(list.path, {}, size);
    ASSERT_EQ(read.documents.size(), 2u);
    EXPECT_EQ(read.documents[1].text, "two");
    EXPECT_EQ(read.bad.size(), 1u);
    EXPECT_EQ(read_file(one.path, {}, size).documents.size(), 1u);
    EXPECT_EQ(read_file(lines.path, {}, size).documents.size(), 2u);
    EXPECT_EQ(read_file(broken.path, {}, size).bad.size(), 1u);
  }
}

TEST(Documents, FieldsThatAreNotOursGoThroughAsTheyAre) {
  const ScratchFile file("meta.jsonl",
                         "{\"score\": 0.5, \"text\": \"t\", \"meta\": {\"a\": [1, \"\\u00e9\"]}, \"url\": \"u\"}\n");
  const ReadResult read = read_file(file.path);
  ASSERT_EQ(read.documents.size(), 1u);
  const std::string line = document_line(read.documents[0]);
  EXPECT_NE(line.find(R"(,"score":0.5,"meta":{"a":[1,"é"]}})"), std::string::npos) << line;
  const ScratchFile again("meta2.jsonl", line + "\n");
  EXPECT_EQ(document_line(read_file(again.path).documents.at(0)), line);
}

TEST(Documents, APatternStandsForTheFilesThatItMatches) {
  const ScratchFile a("pattern-a.jsonl", "{\"text\": \"a\"}\n"), b("pattern-b.jsonl", "{\"text\": \"b\"}\n"),
      other("pattern-c.pdf", "x");
  const std::string stem = (fs::temp_directory_path() / std::to_string(::getpid())).string();
  EXPECT_EQ(read_file(stem + "pattern-*").documents.size(), 2u);
  EXPECT_THROW(list_parts(stem + "nothing-*", "", 1), base::Error);
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

TEST(Documents, AnUnendedQuoteInATableIsBoundedAndNamed) {
  std::string rows = "\xef\xbb\xbfid,text\n1,\"never ends\n";
  for (int i = 0; i < 2000; ++i) rows += "2,x\n";
  const ScratchFile open("open.csv", rows), wide("wide.csv", "\xff\xfei\0d\0"), none("none.csv", "a,b\n1,2\n");
  ReadOptions options;
  const ReadResult whole = read_file(open.path);
  ASSERT_EQ(whole.bad.size(), 1u);
  EXPECT_EQ(whole.bad[0].what, "a quoted field that does not end");
  options.max_record_bytes = 1024;
  const ReadResult read = read_file(open.path, options);
  EXPECT_EQ(read.bad.size(), 1u);
  EXPECT_GT(read.documents.size(), 1000u);  // reading goes on behind it
  EXPECT_EQ(read_file(wide.path).bad.size(), 1u);
  EXPECT_NE(read_file(none.path).bad.at(0).what.find("'a', 'b'"), std::string::npos);
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

TEST(Extract, TheDateOfPublicationIsFoundWhereverAPageHasIt) {
  auto date_of = [](const std::string& head, const std::string& body = "") {
    return extract_page("<html><head>" + head + "</head><body><p>Some text of the page.</p>" + body + "</body></html>")
        .date;
  };
  EXPECT_EQ(date_of("<meta property='article:published_time' content='2019-11-19T07:03'>"), "2019-11-19T07:03");
  EXPECT_EQ(date_of("<meta itemprop=datePublished content=' 2018-09-24 '>"), "2018-09-24");
  EXPECT_EQ(date_of("<script type='application/ld+json'>{\"a\": 1, \"datePublished\" : \"2020-01-02\"}</script>",
                    "<time datetime='2024-05-05'>now</time>"),
            "2020-01-02");
  EXPECT_EQ(date_of("", "<time datetime='2024-05-05'>x</time><time datetime='2024-06-06'>y</time>"), "2024-05-05");
  EXPECT_EQ(date_of("<meta name=date content='today'><script type='application/ld+json'>\"datePublished\"</script>"),
            "");
  EXPECT_EQ(
      extract_page("<html><head><meta http-equiv=Content-Language content='de-AT'></head><body><p>Text.").language,
      "de");
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

TEST(SpanDedupOfParagraphs, OneThatCameBeforeGoesWithItsEmptyLine) {
  SpanDedup dedup({1, TextUnit::paragraph, 0, 0});
  EXPECT_EQ(dedup.add("One of them.\nIts line.\n\n\nTwo."), "One of them.\nIts line.\n\n\nTwo.");
  EXPECT_EQ(dedup.add("Three.\n\nONE OF THEM.\nITS LINE.\n\nFour."), "Three.\n\nFour.");
  EXPECT_EQ(dedup.add("Two.\n\n\n\nFour.\n"), std::nullopt);
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
