// Real tokenizers against the ids that their own libraries gave. Needs the data folder (see tests/CMakeLists.txt).
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "tokenizer/train.h"
#include "tokenizer/unicode.h"

namespace sinter::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

std::string data_path(const std::string& name) {
  const char* folder = std::getenv("SINTER_DATA");
  return std::string(folder ? folder : ".") + "/" + name;
}

struct TokenGolden {
  const char* ids;        // reference/tokens
  const char* tokenizer;  // tokenizers/
  bool special;           // added tokens in the text are recognised
};

class TokenGoldens : public testing::TestWithParam<TokenGolden> {};

TEST_P(TokenGoldens, IdsEqualTheLibrarys) {
  const Tokenizer tokenizer = Tokenizer::load(data_path(std::string("tokenizers/") + GetParam().tokenizer));
  const nlohmann::json rows = base::load_json(data_path(std::string("reference/tokens/") + GetParam().ids));
  ASSERT_GT(rows.size(), 50u);
  for (const auto& row : rows) {
    const auto text = row["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, {.parse_special = GetParam().special}), row["ids"].get<Ids>()) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenGoldens,
                         testing::Values(TokenGolden{"tokens.gpt2.json", "tiktoken/r50k_base.tiktoken", false},
                                         TokenGolden{"tokens.gpt2.json", "gpt2", false},
                                         TokenGolden{"tokens.cl100k_base.json", "tiktoken/cl100k_base.tiktoken", false},
                                         TokenGolden{"tokens.o200k_base.json", "tiktoken/o200k_base.tiktoken", false},
                                         TokenGolden{"tokens.hf-llama2.json", "llama2/tokenizer.json", true},
                                         TokenGolden{"tokens.hf-llama2.json", "llama2/tokenizer.model", true},
                                         TokenGolden{"tokens.hf-llama3.json", "llama3", true},
                                         TokenGolden{"tokens.hf-qwen2.5.json", "qwen2.5", true}));

struct Vector {
  const char* name;  // reference/tokenizer-vectors/ggml-vocab-<name>.gguf.inp and .out
  const char* tokenizer;
};

class Vectors : public testing::TestWithParam<Vector> {};

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> parts;
  for (size_t pos = 0;;) {
    const size_t end = text.find(separator, pos);
    parts.push_back(text.substr(pos, end - pos));
    if (end == std::string::npos) return parts;
    pos = end + separator.size();
  }
}

TEST_P(Vectors, IdsEqualTheFile) {
  const Tokenizer tokenizer = Tokenizer::load(data_path(std::string("tokenizers/") + GetParam().tokenizer));
  const std::string stem =
      data_path(std::string("reference/tokenizer-vectors/ggml-vocab-") + GetParam().name + ".gguf");
  const auto texts = split(base::read_file(stem + ".inp"), "\n__ggml_vocab_test__\n");
  const auto lines = split(base::read_file(stem + ".out"), "\n");
  ASSERT_GT(texts.size(), 40u);
  ASSERT_GE(lines.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    std::string got;
    for (int32_t id : tokenizer.encode(texts[i])) got += " " + std::to_string(id);
    EXPECT_EQ(got, lines[i]) << texts[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All, Vectors,
                         testing::Values(Vector{"gpt-2", "gpt2"}, Vector{"gpt-2", "tiktoken/r50k_base.tiktoken"},
                                         Vector{"llama-bpe", "llama3"}, Vector{"llama-spm", "llama2/tokenizer.model"},
                                         Vector{"llama-spm", "llama2/tokenizer.json"}, Vector{"qwen2", "qwen2.5"}));

TEST(Cs336, TrainingGivesTheReferenceMerges) {
  const std::string folder = data_path("reference/cs336-a1/fixtures/"), corpus = base::read_file(folder + "corpus.en");
  const std::string_view texts[] = {corpus};
  const TrainResult result = train_bpe(texts, {.vocab_size = 500, .special_tokens = {"<|endoftext|>"}});
  std::string merges;
  for (const auto& [left, right] : result.merges)
    merges += bytes_to_alphabet(left) + " " + bytes_to_alphabet(right) + "\n";
  EXPECT_EQ(merges, base::read_file(folder + "train-bpe-reference-merges.txt"));
  const nlohmann::json vocabulary = base::load_json(folder + "train-bpe-reference-vocab.json");
  EXPECT_EQ(static_cast<int32_t>(vocabulary.size()), result.tokenizer.vocab_size());
  for (const auto& [token, id] : vocabulary.items()) EXPECT_GE(result.tokenizer.token_id(token), 0) << token;
}

class ByteLevel : public testing::TestWithParam<const char*> {};

TEST_P(ByteLevel, DecodeGivesBackAnyBytes) {
  const Tokenizer tokenizer = Tokenizer::load(data_path(std::string("tokenizers/") + GetParam()));
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::string bytes(seed * 101 + 1, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(base::CounterRng{seed, 1}.bits(i));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes) << seed;
  }
  const std::string article = base::read_file(data_path("corpora/taylorswift.txt"));
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(article)), article);
  const Tokenizer saved = Tokenizer::from_json(tokenizer.to_json(), "saved");
  EXPECT_EQ(saved.encode(article), tokenizer.encode(article));
}

INSTANTIATE_TEST_SUITE_P(All, ByteLevel,
                         testing::Values("gpt2", "llama3", "tiktoken/p50k_base.tiktoken",
                                         "tiktoken/o200k_base.tiktoken"));

TEST(SentencePiece, ModelFileAndTokenizerJsonAgree) {
  const Tokenizer model = Tokenizer::load(data_path("tokenizers/llama2/tokenizer.model"));
  const Tokenizer json = Tokenizer::load(data_path("tokenizers/llama2/tokenizer.json"));
  const std::string text = base::read_file(data_path("corpora/tinyshakespeare.txt"));
  const Ids ids = model.encode(text);
  EXPECT_EQ(ids, json.encode(text));
  EXPECT_EQ(model.decode(ids), text);
  EXPECT_EQ(model.encode("x", {.add_special = true})[0], 1);
}

}  // namespace
}  // namespace sinter::tokenizer
