// Patterns of tokenizer.json mean what Oniguruma takes them for. Expected pieces are those of the Hugging Face
// `tokenizers` library (pre_tokenizers.Split, behavior "removed", invert).
#include "tokenizer/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

namespace sinter::tokenizer {
namespace {

std::vector<std::string> pieces(std::string_view pattern, std::string_view text) {
  std::vector<std::string> found;
  Regex(pattern, "test").for_each_match(text, [&](size_t begin, size_t end) {
    found.emplace_back(text.substr(begin, end - begin));
  });
  return found;
}

TEST(Regex, ReadsPatternsAsOnigurumaDoes) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(pieces(R"(\w+|[^\w\s]+)", "a\u0301b c\u0308-d\u203f1 x"),
            (Pieces{"a\u0301b", "c\u0308", "-", "d\u203f1", "x"}));
  EXPECT_EQ(pieces("^a|b$", "ab\nab"), (Pieces{"a", "b", "a", "b"}));
  EXPECT_EQ(pieces(R"(\h+)", "fz0G"), (Pieces{"f", "0"}));
  EXPECT_EQ(pieces("a{,2}", "aaa"), (Pieces{"aa", "a"}));
  EXPECT_EQ(pieces(R"(\p{N}{1,3}+)", "00000 12"), (Pieces{"00000", "12"}));
  EXPECT_EQ(pieces("(?:ab){2,3}+", "abababababab"), (Pieces{"abababababab"}));
  EXPECT_EQ(pieces(R"([\w.]+)", "a.b c\u0301!"), (Pieces{"a.b", "c\u0301"}));
  EXPECT_EQ(pieces(R"([^\w]+)", "a-- b"), (Pieces{"-- "}));
  EXPECT_EQ(pieces(R"(\W+)", "a-- b"), (Pieces{"-- "}));
  EXPECT_EQ(pieces("x{2}", "xxx"), (Pieces{"xx"}));
  EXPECT_EQ(pieces("(?:ab){2}+", "ababababab"), (Pieces{"abababab"}));
  EXPECT_EQ(pieces("a{2}+b?", "aaaaaab"), (Pieces{"aaaaaab"}));
  EXPECT_EQ(pieces("a{1,3}?", "aaa"), (Pieces{"a", "a", "a"}));
  EXPECT_EQ(pieces("a{2,}?", "aaaa"), (Pieces{"aa", "aa"}));
  EXPECT_EQ(pieces("a{b", "a{b"), (Pieces{"a{b"}));
  EXPECT_EQ(pieces(R"([\]x]+)", "x]y"), (Pieces{"x]"}));
  EXPECT_EQ(pieces(R"(\p{Lu}{2,}+)", "ABCDe"), (Pieces{"ABCD"}));
}

TEST(Regex, WhatTheEnginesDoNotShareIsRefused) {
  for (const char* pattern : {"[a-z&&[^b]]+", "[a[bc]]+", "[\\W_]+", "(unclosed"})
    EXPECT_THROW(Regex(pattern, "test"), base::Error) << pattern;
}

// One long word used to make every later match slow.
TEST(Regex, TextAfterAWordTooLongForTheCompiledCodeIsStillRead) {
  std::string text(400000, 'a');
  for (int i = 0; i < 20000; ++i) text += " word";
  EXPECT_EQ(pieces(R"((?:[a-z][a-z]?)+|\s+)", text).size(), 40001u);
}

}  // namespace
}  // namespace sinter::tokenizer
