#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/source_dir.h"
#include "base/threads.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

const std::string kGolden = base::source_dir() + "/tests/golden/tokenizer/";
using Ids = std::vector<int32_t>;

const Tokenizer& gpt2() {
  static const Tokenizer instance = Tokenizer::load(kGolden + "r50k_base.tiktoken");
  return instance;
}
const Tokenizer& cl100k() {
  static const Tokenizer instance = Tokenizer::load(kGolden + "cl100k_base.tiktoken");
  return instance;
}

void expect_golden_ids(const Tokenizer& tokenizer, const std::string& file) {
  const nlohmann::json rows = base::load_json(kGolden + file);
  ASSERT_GT(rows.size(), 50u);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), row["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer.decode(row["ids"].get<Ids>()), text);
  }
}

std::string random_bytes(uint64_t seed, size_t size) {
  const base::CounterRng rng{seed, 7};
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(rng.bits(i));
  return bytes;
}

// Words, spaces, numbers, accents, ideographs and stray bytes.
std::string random_text(uint64_t seed, size_t pieces) {
  static const std::vector<std::string> kWords{
      "hello", " World", "'s", "'LL",   "123456",        " ",    "  ",   "\n",  "\r\n", "\t", "é", " naïve", "日本語",
      "😁",     "...",    "/",  "=====", "<|endoftext|>", "\xff", "\xc3", "ABc", "_"};
  const base::CounterRng rng{seed, 8};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) text += kWords[rng.bits(i) % kWords.size()];
  return text;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const base::Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Tokenizer, Gpt2EqualsTiktoken) { expect_golden_ids(gpt2(), "tokens.gpt2.json"); }
TEST(Tokenizer, Cl100kEqualsTiktoken) { expect_golden_ids(cl100k(), "tokens.cl100k_base.json"); }

TEST(Tokenizer, EveryStageEqualsTheHuggingFaceLibrary) {
  const nlohmann::json rows = base::load_json(kGolden + "stages.json");
  ASSERT_GT(rows.size(), 30u);
  for (const auto& row : rows) {
    const auto name = row["name"].get<std::string>();
    const Tokenizer tokenizer = Tokenizer::from_json(row["tokenizer"].dump(), name);
    const Tokenizer again = Tokenizer::from_json(tokenizer.to_json(), name + " saved");
    for (const auto& c : row["cases"]) {
      const auto text = c["text"].get<std::string>();
      const Ids want = c["ids"].get<Ids>();
      EXPECT_EQ(tokenizer.encode(text, {.parse_special = true}), want) << name << ": '" << text << "'";
      EXPECT_EQ(again.encode(text, {.parse_special = true}), want) << name << " saved: '" << text << "'";
      EXPECT_EQ(tokenizer.encode(text, {.parse_special = true, .add_special = true}), c["with_template"].get<Ids>())
          << name << ": '" << text << "'";
      EXPECT_EQ(tokenizer.decode(want), c["decoded"].get<std::string>()) << name << ": '" << text << "'";
      EXPECT_EQ(tokenizer.decode(want, true), c["skipped"].get<std::string>()) << name << ": '" << text << "'";
    }
  }
}

Tokenizer expect_library(const std::string& model) {
  Tokenizer tokenizer = Tokenizer::load(kGolden + model);
  for (const auto& row : base::load_json(kGolden + model + ".json")) {
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), row["ids"].get<Ids>()) << "'" << text << "'";
    EXPECT_EQ(tokenizer.decode(row["ids"].get<Ids>()), row["decoded"].get<std::string>());
  }
  return tokenizer;
}

TEST(Tokenizer, SmallSentencePieceModelEqualsTheLibrary) {
  EXPECT_EQ(expect_library("small.model").encode("<s>hi", {.add_special = true})[0], 1);
}

TEST(Tokenizer, SentencePieceModelThatRemovesSpacesEqualsTheLibrary) { expect_library("spaces.model"); }

TEST(Tokenizer, DecodeGivesBackAnyBytes) {
  for (const Tokenizer* tokenizer : {&gpt2(), &cl100k()}) {
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::string bytes = random_bytes(seed, 1 + seed * 37);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << seed;
      const std::string text = random_text(seed, 200);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, {.parse_special = true})), text) << seed;
    }
  }
}

TEST(Tokenizer, SavedFileEncodesTheSame) {
  const Tokenizer again = Tokenizer::from_json(cl100k().to_json(), "saved");
  EXPECT_EQ(again.vocab_size(), cl100k().vocab_size());
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string text = random_text(seed, 300);
    EXPECT_EQ(again.encode(text), cl100k().encode(text));
    EXPECT_EQ(again.encode(text, {.parse_special = true}), cl100k().encode(text, {.parse_special = true}));
  }
}

TEST(Tokenizer, SpecialTokensAreTextUnlessAsked) {
  EXPECT_EQ(gpt2().encode("<|endoftext|>", {.parse_special = true}), Ids{50256});
  const Ids as_text = gpt2().encode("<|endoftext|>");
  EXPECT_GT(as_text.size(), 1u);
  EXPECT_EQ(gpt2().decode(as_text), "<|endoftext|>");
  EXPECT_EQ(gpt2().decode(Ids{15496, 50256}, true), "Hello");
  EXPECT_EQ(gpt2().special_ids().eos, 50256);
  EXPECT_EQ(gpt2().token_id("<|endoftext|>"), 50256);
  EXPECT_TRUE(gpt2().is_special(50256));
}

TEST(Tokenizer, ParallelEncodingEqualsSerial) {
  std::string text;
  for (uint64_t seed = 0; text.size() < 3'000'000; ++seed) text += random_text(seed, 1000);
  const int threads = base::num_threads();
  base::set_num_threads(3);
  EXPECT_EQ(cl100k().encode_parallel(text, {.parse_special = true}), cl100k().encode(text, {.parse_special = true}));
  EXPECT_EQ(gpt2().encode_parallel(text), gpt2().encode(text));
  std::vector<std::string> storage;
  for (uint64_t seed = 0; seed < 100; ++seed) storage.push_back(random_text(seed, seed));
  const std::vector<std::string_view> views(storage.begin(), storage.end());
  const auto many = gpt2().encode_many(views);
  for (size_t i = 0; i < views.size(); ++i) EXPECT_EQ(many[i], gpt2().encode(views[i]));
  base::set_num_threads(threads);
}

TEST(Tokenizer, MegabyteOfOneLetterIsEncodedWhole) {
  const std::string text(1 << 20, 'a'), spaces(1 << 20, ' ');
  for (const Tokenizer* tokenizer : {&gpt2(), &cl100k()}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(spaces)), spaces);
  }
}

TEST(Tokenizer, LongPiecesMergeAsShortOnesDo) {
  // The same word through the heap (many symbols) and, cut at its own token boundaries, through the linear search.
  const std::string word = "antidisestablishmentarianismpseudopseudohypoparathyroidismfloccinaucinihilipilification";
  const Ids ids = cl100k().encode(word);
  std::string joined;
  for (int32_t id : ids) joined += cl100k().token_bytes(id);
  EXPECT_EQ(joined, word);
  EXPECT_LT(ids.size(), 40u);
}

TEST(StreamDecoder, HoldsBackIncompleteCharacters) {
  const std::string text = "naïve 😁 日本語 done";
  StreamDecoder decoder(gpt2());
  std::string joined;
  for (int32_t id : gpt2().encode(text)) {
    const std::string part = decoder.push(id);
    EXPECT_TRUE(is_valid_utf8(part));
    joined += part;
  }
  EXPECT_EQ(joined + decoder.finish(), text);
}

TEST(StreamDecoder, WhatFollowsAPromptKeepsItsSpace) {
  const Tokenizer llama = Tokenizer::load(base::source_dir() + "/tests/golden/tokenizer/small.model");
  const std::vector<int32_t> prompt = llama.encode("Once upon"), rest = llama.encode("a time");
  auto decode = [&](StreamDecoder decoder) {
    std::string text;
    for (int32_t id : rest) text += decoder.push(id);
    return text + decoder.finish();
  };
  StreamDecoder fresh(llama), behind(llama);
  behind.skip(prompt);
  EXPECT_EQ(decode(fresh), "a time");
  EXPECT_EQ(decode(behind), " a time");
}

TEST(StreamDecoder, ReplacesBytesThatNeverBecomeCharacters) {
  StreamDecoder decoder(gpt2());
  std::string joined;
  for (int32_t id : gpt2().encode("a\xff\xf0\x9f b\xe2\x82")) joined += decoder.push(id);
  joined += decoder.finish();
  EXPECT_TRUE(is_valid_utf8(joined)) << joined;
  EXPECT_TRUE(joined.starts_with("a\ufffd")) << joined;
}

TEST(Tokenizer, UnknownIdIsAnErrorThatNamesIt) {
  EXPECT_NE(error_of([] { gpt2().decode(Ids{50257}); }).find("50257"), std::string::npos);
  EXPECT_NE(error_of([] { gpt2().decode(Ids{-1}); }).find("-1"), std::string::npos);
}

TEST(Tokenizer, CutOffFilesGiveOneClearError) {
  const std::string tiktoken = base::read_file(kGolden + "cl100k_base.tiktoken");
  EXPECT_NE(
      error_of([&] { Tokenizer::from_tiktoken(tiktoken.substr(0, 1000), "x/cl100k_base.tiktoken"); }).find("cut off"),
      std::string::npos);
  EXPECT_NE(error_of([&] {
              Tokenizer::from_tiktoken(tiktoken.substr(0, tiktoken.find('\n', 5000)), "x/cl100k_base.tiktoken");
            }).find("cut off"),
            std::string::npos);
  const std::string model = base::read_file(kGolden + "small.model");
  EXPECT_NE(error_of([&] {
              Tokenizer::from_sentencepiece(model.substr(0, model.size() / 2), "small.model");
            }).find("cut off"),
            std::string::npos);
  EXPECT_NE(error_of([&] { Tokenizer::from_sentencepiece("", "empty.model"); }).find("empty.model"), std::string::npos);
  const std::string json = base::load_json(kGolden + "stages.json")[0]["tokenizer"].dump();
  EXPECT_NE(error_of([&] { Tokenizer::from_json(json.substr(0, json.size() / 2), "half.json"); }).find("half.json"),
            std::string::npos);
}

// Each change to a sound file, and what the message must name.
TEST(Tokenizer, WhatIsNotSupportedIsNamedWithFileAndKey) {
  const nlohmann::json good = base::load_json(kGolden + "stages.json")[0]["tokenizer"];
  struct Change {
    const char* pointer;
    nlohmann::json value;
    const char* named;
  };
  const std::vector<Change> changes{
      {"/model/type", "Unigram", "model.type"},
      {"/model/dropout", 0.1, "model.dropout"},
      {"/model/surprise", 1, "surprise"},
      {"/normalizer", {{"type", "Nmt"}}, "normalizer.type"},
      {"/pre_tokenizer", {{"type", "UnicodeScripts"}}, "pre_tokenizer.type"},
      {"/pre_tokenizer/use_regexp", true, "use_regexp"},
      {"/decoder", {{"type", "CTC"}}, "decoder.type"},
      {"/post_processor", {{"type", "Other"}}, "post_processor.type"},
      {"/pre_tokenizer",
       {{"type", "Split"}, {"pattern", {{"Regex", "(unclosed"}}}, {"behavior", "Isolated"}},
       "pre_tokenizer.pattern.Regex"},
      {"/model/merges/0", "only", "model.merges[0]"},
      {"/model/merges/1", "zz\u0120qq x", "model.merges[1]"},
      {"/model/vocab/zzz", -4, "model.vocab.zzz"},
      {"/added_tokens/0/id", "one", "added_tokens[0].id"},
  };
  for (const Change& change : changes) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(change.pointer)] = change.value;
    const std::string message = error_of([&] { Tokenizer::from_json(bad.dump(), "dir/tokenizer.json"); });
    EXPECT_NE(message.find("dir/tokenizer.json"), std::string::npos) << message;
    EXPECT_NE(message.find(change.named), std::string::npos) << message;
  }
}

TEST(Normalizer, SortsALongRunOfMarksAsAShortOne) {
  // Marks of classes 230 and 220 in turns: 220 comes first; a base and its marks compose where they can.
  EXPECT_EQ(normalize_unicode("a\u0301\u0323", NormalForm::nfc), normalize_unicode("\u1ea1\u0301", NormalForm::nfc));
  std::string text = "q", sorted = "q";
  constexpr int kPairs = 200000;  // exchanging neighbours would take minutes
  for (int i = 0; i < kPairs; ++i) text += "\u0301\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0323";
  for (int i = 0; i < kPairs; ++i) sorted += "\u0301";
  EXPECT_TRUE(normalize_unicode(text, NormalForm::nfc) == sorted);
  EXPECT_TRUE(normalize_unicode(text, NormalForm::nfd) == sorted);
}

TEST(Normalizer, GrowthWithoutBoundIsAnErrorThatNamesTheStage) {
  nlohmann::json file = base::load_json(kGolden + "stages.json")[0]["tokenizer"];
  nlohmann::json stages = nlohmann::json::array();
  for (int i = 0; i < 8; ++i)
    stages.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(40, 'a')}});
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", stages}};
  const Tokenizer bomb = Tokenizer::from_json(file.dump(), "tokenizer.json");
  EXPECT_NE(error_of([&] { bomb.encode("aaaaaaaaaa"); }).find("normalizer 'Replace'"), std::string::npos);
}

TEST(Tokenizer, TokensBesideASentencePieceModelAndItsOwnSpecialOnesAreFoundInText) {
  const std::string folder = std::filesystem::temp_directory_path() / fmt::format("sinter_beside_{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(kGolden + "small.model", folder + "/tokenizer.model",
                             std::filesystem::copy_options::overwrite_existing);
  const Tokenizer alone = Tokenizer::load(folder);
  const int32_t next = alone.vocab_size(), eos = alone.special_ids().eos;
  Ids expected = alone.encode("hello");
  expected.push_back(eos);
  const Ids parsed = alone.encode("hello</s>world", {.parse_special = true});
  ASSERT_GT(parsed.size(), expected.size());
  EXPECT_EQ(Ids(parsed.begin(), parsed.begin() + static_cast<int64_t>(expected.size())), expected);

  base::write_file_atomic(
      folder + "/tokenizer_config.json",
      fmt::format(R"({{"eos_token": "<|end|>", "added_tokens_decoder": {{"{}": {{"content": "<|end|>",
                                        "special": true}}, "2": {{"content": "</s>", "special": true}}}}}})",
                  next));
  base::write_file_atomic(folder + "/added_tokens.json",
                          fmt::format(R"({{"<tool>": {}, "<|end|>": {}}})", next + 1, next));
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.vocab_size(), next + 2);
  EXPECT_EQ(tokenizer.special_ids().eos, next);
  const Ids ids = tokenizer.encode("hello<tool><|end|>", {.parse_special = true});
  EXPECT_EQ(Ids(ids.end() - 2, ids.end()), (Ids{next + 1, next}));
  EXPECT_EQ(tokenizer.decode(ids), "hello<tool><|end|>");
  const Ids plain = tokenizer.encode("<|end|>");
  EXPECT_EQ(std::count(plain.begin(), plain.end(), next), 0) << "special, though the other file does not say so";
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, FolderNamesItsSpecialTokens) {
  const std::string folder = std::filesystem::temp_directory_path() / fmt::format("sinter_tokenizer_{}", ::getpid());
  std::filesystem::create_directories(folder);
  base::write_file_atomic(folder + "/tokenizer.json", base::load_json(kGolden + "stages.json")[0]["tokenizer"].dump());
  base::write_file_atomic(
      folder + "/tokenizer_config.json",
      R"({"bos_token": {"content": "<bos>"}, "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": true})");
  base::write_file_atomic(folder + "/config.json", R"({"eos_token_id": [2, 7], "bos_token_id": 0})");
  const Tokenizer tokenizer = Tokenizer::load(folder);
  EXPECT_EQ(tokenizer.special_ids().bos, 1);
  EXPECT_EQ(tokenizer.special_ids().eos, 2);
  EXPECT_EQ(tokenizer.encode("", {.add_special = true}), Ids{1});
  std::filesystem::remove(folder + "/tokenizer.json");
  EXPECT_NE(error_of([&] { Tokenizer::load(folder); }).find("neither tokenizer.json nor tokenizer.model"),
            std::string::npos);
  std::filesystem::remove_all(folder);
}

// Python: bytes.decode(errors="replace").
TEST(Unicode, OneReplacementStandsForAsMuchOfACharacterAsIsWellFormed) {
  const std::vector<std::pair<std::string, std::vector<size_t>>> cases{
      {"\xf0\x9f\x98", {3}},       {"\xe6\x97", {2}},    {"\xe0\x80\x80", {1, 1, 1}},
      {"\xed\xa0\x80", {1, 1, 1}}, {"\xff\xfe", {1, 1}}, {"\xf0\x9f\xe6\x97", {2, 2}},
      {"\xf5\x80", {1, 1}},        {"\xc3", {1}}};
  for (const auto& [text, lengths] : cases) {
    size_t pos = 0;
    for (size_t length : lengths) {
      ASSERT_EQ(decode_char(text, pos).code, kBadByte) << text << " at " << pos;
      EXPECT_EQ(ill_formed_bytes(text, pos), length) << text << " at " << pos;
      pos += length;
    }
    EXPECT_EQ(pos, text.size()) << text;
  }
}

}  // namespace
}  // namespace sinter::tokenizer
