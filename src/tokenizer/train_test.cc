#include "tokenizer/train.h"

#include <gtest/gtest.h>

#include <map>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "base/threads.h"
#include "tokenizer/split_pattern.h"

namespace sinter::tokenizer {
namespace {

using Merges = std::vector<std::pair<std::string, std::string>>;

BpeTraining train(std::string_view text, TrainOptions options) {
  const std::string_view texts[] = {text};
  return train_bpe(texts, options);
}

// The definition, word for word: count all pairs anew for every merge.
Merges train_plainly(std::string_view text, size_t num_merges) {
  std::map<std::string, uint64_t> counts;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = piece_end(SplitPattern::gpt2)(text, pos);
    ++counts[std::string(text.substr(pos, end - pos))];
    pos = end;
  }
  std::vector<std::pair<std::vector<std::string>, uint64_t>> words;
  for (const auto& [word, count] : counts) {
    words.push_back({{}, count});
    for (char c : word) words.back().first.emplace_back(1, c);
  }
  Merges merges;
  while (merges.size() < num_merges) {
    std::map<std::pair<std::string, std::string>, uint64_t> pairs;
    for (const auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) pairs[{symbols[i], symbols[i + 1]}] += count;
    }
    if (pairs.empty()) break;
    auto best = pairs.begin();
    for (auto it = pairs.begin(); it != pairs.end(); ++it) {
      if (it->second >= best->second) best = it;  // later in the map is lexicographically greater
    }
    merges.push_back(best->first);
    for (auto& [symbols, count] : words) {
      for (size_t i = 0; i + 1 < symbols.size(); ++i) {
        if (symbols[i] != best->first.first || symbols[i + 1] != best->first.second) continue;
        symbols[i] += symbols[i + 1];
        symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
  }
  return merges;
}

std::string random_words(uint64_t seed, size_t count, unsigned letters) {
  const base::CounterRng rng{seed, 3};
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    for (uint32_t n = 1 + rng.bits(2 * i) % 7, k = 0; k < n; ++k)
      text += static_cast<char>('a' + rng.bits(100000 + 8 * i + k) % letters);
    text += rng.bits(2 * i + 1) % 5 == 0 ? "\n" : " ";
  }
  return text;
}

TEST(TrainBpe, EqualsTheDefinitionOnRandomWords) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    const std::string text = random_words(seed, 300, 2 + seed % 4);
    const Merges want = train_plainly(text, 60);
    BpeTraining result = train(text, {.vocab_size = 256 + 60});
    // A byte string made in two ways takes one id: then there are more merges than ids.
    ASSERT_GE(result.merges.size(), 60u);
    result.merges.resize(60);
    EXPECT_EQ(result.merges, want) << "seed " << seed;
  }
}

TEST(TrainBpe, BreaksTiesByTheGreatestPair) {
  // ab, ab, yz, yz: (y, z) is greater; then " y" and " a" tie with (a, b).
  const BpeTraining result = train("ab yz ab yz", {.vocab_size = 256 + 2});
  EXPECT_EQ(result.merges[0], (std::pair<std::string, std::string>{"y", "z"}));
  EXPECT_EQ(result.merges[1], (std::pair<std::string, std::string>{"a", "b"}));
}

TEST(TrainBpe, RunsOfOneLetterMergeFromTheLeft) {
  const BpeTraining result = train("aaaaa", {.vocab_size = 256 + 2});
  EXPECT_EQ(result.merges, (Merges{{"a", "a"}, {"aa", "aa"}}));
}

TEST(TrainBpe, SpecialTokensTakeNoPartInMerges) {
  const BpeTraining result = train("xy<|end|>xy<|end|>xy", {.vocab_size = 300, .special_tokens = {"<|end|>"}});
  EXPECT_EQ(result.merges, (Merges{{"x", "y"}}));
  EXPECT_EQ(result.tokenizer.vocab_size(), 258);
  EXPECT_EQ(result.tokenizer.special_ids().eos, 257);
  EXPECT_EQ(result.tokenizer.encode("xy<|end|>", {.parse_special = true}), (std::vector<int32_t>{256, 257}));
}

TEST(TrainBpe, PromptsBeginWithBosAsDocumentsInTrainingDo) {
  const std::vector<std::string_view> texts{"the cat sat on the mat"};
  const Tokenizer tokenizer = train_bpe(texts, {.vocab_size = 280, .special_tokens = {"<|endoftext|>"}}).tokenizer;
  const Tokenizer again = Tokenizer::from_json(tokenizer.to_json(), "again");
  std::vector<int32_t> plain = again.encode("the cat");
  EXPECT_EQ(plain, tokenizer.encode("the cat"));
  plain.insert(plain.begin(), tokenizer.special_ids().bos);
  EXPECT_EQ(again.encode("the cat", {.add_special = true}), plain);
  EXPECT_EQ(again.decode(plain), "<|endoftext|>the cat");
}

TEST(TrainBpe, ResultDoesNotDependOnThreadsOrOnHowTheTextIsDivided) {
  const std::string text = random_words(99, 600000, 20);  // several chunks
  const int threads = base::num_threads();
  base::set_num_threads(1);
  const BpeTraining one = train(text, {.vocab_size = 600});
  base::set_num_threads(3);
  const BpeTraining three = train(text, {.vocab_size = 600});
  const size_t cut = safe_cut(text, text.size() / 3);
  const std::string_view parts[] = {std::string_view(text).substr(cut), std::string_view(text).substr(0, cut)};
  const BpeTraining divided = train_bpe(parts, {.vocab_size = 600});
  base::set_num_threads(threads);
  EXPECT_EQ(one.merges, three.merges);
  EXPECT_EQ(one.merges, divided.merges);
  EXPECT_EQ(one.tokenizer.to_json(), three.tokenizer.to_json());
}

TEST(TrainBpe, EveryPatternSurvivesSaving) {
  const std::string text = random_words(5, 2000, 12) + " It's 1234 HTTPServer\n\n naïve 日本語";
  for (const char* pattern : {"gpt2", "cl100k", "llama3", "qwen2", "o200k", "[^ ]+| +"}) {
    const BpeTraining result =
        train(text, {.vocab_size = 400, .special_tokens = {"<|endoftext|>"}, .pattern = pattern});
    const Tokenizer again = Tokenizer::from_json(result.tokenizer.to_json(), "saved");
    const std::string sample = "It's 98765 HTTPServers\n \n abcabc naïve <|endoftext|>  ";
    EXPECT_EQ(again.encode(sample), result.tokenizer.encode(sample)) << pattern;
    EXPECT_EQ(again.decode(again.encode(sample)), sample) << pattern;
  }
}

TEST(TrainBpe, StopsAtTheLeastCount) {
  const BpeTraining result = train("abab abab cd", {.vocab_size = 1000, .min_count = 2});
  for (const auto& [left, right] : result.merges) EXPECT_NE(left + right, "cd");
  EXPECT_LT(result.tokenizer.vocab_size(), 262);
}

TEST(TrainBpe, BadRequestsAreRefused) {
  EXPECT_THROW(train("text", {.vocab_size = 255}), base::UsageError);
  EXPECT_THROW(train("text", {.vocab_size = 256, .special_tokens = {"<s>"}}), base::UsageError);
  EXPECT_THROW(train("text", {.vocab_size = 300, .special_tokens = {"<s>", "<s>"}}), base::UsageError);
  EXPECT_THROW(train("text", {.vocab_size = 300, .pattern = "gtp2"}), base::UsageError);
  EXPECT_THROW(train("text", {.vocab_size = 300, .pattern = "(a"}), base::UsageError);
  EXPECT_THROW(train("", {.vocab_size = 300}), base::Error);
}

}  // namespace
}  // namespace sinter::tokenizer
