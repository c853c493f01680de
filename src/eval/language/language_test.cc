// Answers of langdetect 1.0.9 with DetectorFactory.seed = 0, and of NLTK 3.10.4 with its English punkt model.
#include <gtest/gtest.h>

#include "eval/language/detect.h"
#include "eval/language/sentences.h"
#include "eval/tasks/python_regex.h"

namespace sinter::eval {
namespace {

TEST(Language, GuessesAreThoseOfLangdetectToTheLastDraw) {
  struct Case {
    const char* text;
    std::vector<LanguageGuess> guesses;
  };
  const std::vector<Case> cases{
      {"The quick brown fox jumps over the lazy dog.", {{"en", 0.9999980333834977}}},
      {"THE QUICK BROWN FOX JUMPS OVER THE LAZY DOG.", {{"en", 0.5714271378289894}, {"de", 0.42857187566271443}}},
      {"Der schnelle braune Fuchs springt über den faulen Hund.", {{"de", 0.9999973166840513}}},
      {"otec matka syn.", {{"fi", 0.9999965723931039}}},
      {"これは日本語の文章です。", {{"ja", 0.9999993729964325}}},
      {"今天天气很好，我们去公园散步。", {{"zh-cn", 0.8571420350252688}, {"ko", 0.14285750231587815}}},
      {"Tôi là sinh viên ở Hà Nội", {{"vi", 0.9999980092438252}}},
      {"Привет, как дела?", {{"mk", 0.9999944857676031}}},
      {"War doesn't show who's right, just who's left. https://example.com/a?b=c x@y.org",
       {{"en", 0.999998585970149}}}};
  for (const Case& c : cases) {
    const auto found = guess_languages(c.text);
    ASSERT_TRUE(found) << c.text;
    ASSERT_EQ(found->size(), c.guesses.size()) << c.text;
    for (size_t i = 0; i < found->size(); ++i) {
      EXPECT_EQ((*found)[i].name, c.guesses[i].name) << c.text;
      EXPECT_NEAR((*found)[i].probability, c.guesses[i].probability, 1e-9) << c.text;
    }
  }
  EXPECT_FALSE(guess_languages("123 ... 45"));
  EXPECT_TRUE(is_in_language("123", "en"));
}

TEST(Language, SentencesAreThoseOfPunkt) {
  EXPECT_EQ(split_sentences(
                "Mr. Smith went to Washington, D.C. on Jan. 3. He met J. Bach there! \"Really?\" he asked... yes."),
            (std::vector<std::string>{"Mr. Smith went to Washington, D.C. on Jan. 3.", "He met J. Bach there!",
                                      "\"Really?\"", "he asked... yes."}));
  EXPECT_EQ(split_sentences("One (two.) Three"), (std::vector<std::string>{"One (two.)", "Three"}));
  EXPECT_TRUE(split_sentences("").empty());
}

// From Python's re.split and NLTK.
TEST(SentencesTest, SeparatorsOfPythonAreSpaces) {
  EXPECT_EQ(PythonRegex(R"(\s+)").split("a\x1c\x1d b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(PythonRegex(R"([\s,]+)").split("a\x1f,b"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(PythonRegex(R"([]\s]+)")
                .split("a]\x1f"
                       "b"),
            (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(PythonRegex(R"(\S+)")
                .find_all("a\x1e"
                          "b")
                .size(),
            2u);
}

}  // namespace
}  // namespace sinter::eval
