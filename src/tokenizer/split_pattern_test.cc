#include "tokenizer/split_pattern.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tokenizer/regex.h"

namespace sinter::tokenizer {
namespace {

using Strings = std::vector<std::string>;

Strings split(SplitPattern pattern, std::string_view text) {
  Strings pieces;
  for (size_t pos = 0; pos < text.size();) {
    size_t end = piece_end(pattern)(text, pos);
    pieces.emplace_back(text.substr(pos, end - pos));
    if (end <= pos) break;
    pos = end;
  }
  return pieces;
}

TEST(SplitPattern, Gpt2KeepsTheSpaceWithTheWordAndTheLastOfSeveralSpaces) {
  EXPECT_EQ(split(SplitPattern::gpt2, "Hello  world it's 3.14!"),
            (Strings{"Hello", " ", " world", " it", "'s", " 3", ".", "14", "!"}));
  EXPECT_EQ(split(SplitPattern::gpt2, "a\n\nb  "), (Strings{"a", "\n", "\n", "b", "  "}));
}

TEST(SplitPattern, Gpt2ContractionsAreLowerCaseOnly) {
  EXPECT_EQ(split(SplitPattern::gpt2, "I'LL we'll"), (Strings{"I", "'", "LL", " we", "'ll"}));
}

TEST(SplitPattern, Llama3TakesThreeDigitsAndQwenOne) {
  EXPECT_EQ(split(SplitPattern::llama3, "12345"), (Strings{"123", "45"}));
  EXPECT_EQ(split(SplitPattern::qwen2, "123"), (Strings{"1", "2", "3"}));
}

TEST(SplitPattern, Llama3EndsWhiteSpaceAfterTheLastNewline) {
  EXPECT_EQ(split(SplitPattern::llama3, "x \n \n  y"), (Strings{"x", " \n \n", " ", " y"}));
  EXPECT_EQ(split(SplitPattern::llama3, "x\n  "), (Strings{"x", "\n", "  "}));
}

TEST(SplitPattern, Cl100kKeepsTrailingWhiteSpaceWhole) {
  EXPECT_EQ(split(SplitPattern::cl100k, "x\n  "), (Strings{"x", "\n  "}));
  EXPECT_EQ(split(SplitPattern::cl100k, "x\n  y"), (Strings{"x", "\n", " ", " y"}));
}

TEST(SplitPattern, O200kSplitsWordsWhereCaseRises) {
  EXPECT_EQ(split(SplitPattern::o200k, "HTTPServer camelCase DON'T"),
            (Strings{"HTTPServer", " camel", "Case", " DON'T"}));
  EXPECT_EQ(split(SplitPattern::o200k, "a/b//\n c"), (Strings{"a", "/b", "//\n", " c"}));
}

// Characters of every class that the patterns tell apart, and all that contractions are made of.
std::string random_text(uint64_t seed) {
  static const Strings kCharacters{" ",
                                   " ",
                                   "  ",
                                   "\t",
                                   "\n",
                                   "\r",
                                   "\r\n",
                                   "'",
                                   "'",
                                   "s",
                                   "t",
                                   "re",
                                   "ve",
                                   "m",
                                   "ll",
                                   "d",
                                   "S",
                                   "T",
                                   "RE",
                                   "Ve",
                                   "M",
                                   "lL",
                                   "D",
                                   "\u017f" /* long s */,
                                   "a",
                                   "B",
                                   "xyz",
                                   "Abc",
                                   "ABC",
                                   "0",
                                   "1",
                                   "12",
                                   "9876",
                                   "/",
                                   "//",
                                   ".",
                                   "!",
                                   "_",
                                   "-",
                                   "\u00e9" /* lower */,
                                   "\u00c9" /* upper */,
                                   "\u01c5" /* title case */,
                                   "\u02b0" /* modifier */,
                                   "\u4e2d" /* no case */,
                                   "\u0301" /* mark */,
                                   "\u216b" /* letter number */,
                                   "\u00b2" /* other number */,
                                   "\u0663" /* digit */,
                                   "\u00a0" /* space */,
                                   "\u3000",
                                   "\u2028" /* line separator */,
                                   "\u0085",
                                   "\u200b" /* format */,
                                   "\U0001f600" /* emoji */,
                                   "\u212a" /* Kelvin */};
  const base::CounterRng rng{seed, 21};
  std::string text;
  for (uint64_t i = 1; i <= rng.bits(0) % 12 + 1; ++i) text += kCharacters[rng.bits(i) % kCharacters.size()];
  return text;
}

TEST(SplitPattern, EveryPatternSplitsAsItsRegularExpressionDoes) {
  for (const std::string& name : pattern_names()) {
    const SplitPattern pattern = *pattern_by_name(name);
    const Regex regex(pattern_regex(pattern), name);
    for (uint64_t seed = 0; seed < 20000; ++seed) {
      const std::string text = random_text(seed);
      Strings expected;
      regex.for_each_match(text,
                           [&](size_t begin, size_t end) { expected.push_back(text.substr(begin, end - begin)); });
      ASSERT_EQ(split(pattern, text), expected) << name << ", text of seed " << seed << ": '" << text << "'";
    }
  }
}

TEST(SplitPattern, BytesThatAreNotUtf8ArePiecesToo) {
  for (SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::cl100k, SplitPattern::o200k}) {
    std::string text = "a\xff\xc3 b\x80";
    std::string joined;
    for (const std::string& piece : split(pattern, text)) joined += piece;
    EXPECT_EQ(joined, text);
  }
}

TEST(SplitPattern, RegexOfEveryPatternIsRecognised) {
  for (const std::string& name : pattern_names()) {
    SplitPattern pattern = *pattern_by_name(name);
    EXPECT_EQ(find_pattern(pattern_regex(pattern)), pattern) << name;
  }
}

}  // namespace
}  // namespace sinter::tokenizer
