// Verdicts of lm-eval's instruction checkers on texts that are meant to trip one.
#include "eval/checkers/ifeval.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tokenizer/jinja/runtime.h"

namespace sinter::eval {
namespace {

bool follows(const char* id, const nlohmann::ordered_json& arguments, const char* answer) {
  return follows_instruction(id, tokenizer::jinja::from_json(arguments), answer);
}

TEST(IfevalTest, SignsOfOneCaseWithoutTheOtherCountAsCased) {
  const nlohmann::ordered_json one{{"capital_frequency", 1}, {"capital_relation", "at least"}};
  EXPECT_TRUE(follows("change_case:capital_word_frequency", one, "stage Ⅳ here"));
  EXPECT_TRUE(follows("change_case:capital_word_frequency", one, "this is 𝐀"));
  EXPECT_FALSE(follows("change_case:capital_word_frequency", one, "this is Nª"));
  EXPECT_FALSE(follows("change_case:english_capital", nullptr, "THIS IS THE ROAD TO THE TOWN Nº FIVE OF THE COUNTRY"));
}

TEST(IfevalTest, OnlyLettersOfAToZAreCounted) {
  const nlohmann::ordered_json mark{{"letter", "!"}, {"let_frequency", 1}, {"let_relation", "at least"}};
  EXPECT_FALSE(follows("keywords:letter_frequency", mark, "!!!"));
  const nlohmann::ordered_json kelvin{{"letter", "\u212a"}, {"let_frequency", 1}, {"let_relation", "at least"}};
  EXPECT_TRUE(follows("keywords:letter_frequency", kelvin, "k"));
}

TEST(IfevalTest, FinalSigmasAreLowerCaseAsPythonHasThem) {
  const nlohmann::ordered_json phrase{{"end_phrase", "οδος"}}, start{{"prompt_to_repeat", "ΟΔΟΣ"}};
  EXPECT_TRUE(follows("startend:end_checker", phrase, "Η ΟΔΟΣ"));
  EXPECT_TRUE(follows("combination:repeat_prompt", start, "ΟΔΟΣ one"));
  EXPECT_FALSE(follows("combination:repeat_prompt", start, "ΟΔΟΣone"));
}

TEST(IfevalTest, JsonIsWhatPythonReads) {
  EXPECT_TRUE(follows("detectable_format:json_format", nullptr, "```json\n[1]\n```"));
  EXPECT_FALSE(follows("detectable_format:json_format", nullptr, "```json\n\ufeff[1]\n```"));
  EXPECT_TRUE(follows("detectable_format:json_format", nullptr, "[NaN, -Infinity]"));
  EXPECT_FALSE(follows("detectable_format:json_format", nullptr, "[-NaN]"));
  EXPECT_FALSE(follows("detectable_format:json_format", nullptr, "[1Infinity]"));
}

}  // namespace
}  // namespace sinter::eval
