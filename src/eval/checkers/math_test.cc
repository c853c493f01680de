// Verdicts of lm-evaluation-harness 0.4.13 with sympy 1.14 (minerva_math's is_equiv, hendrycks_math's strip_string).
#include "eval/checkers/math.h"

#include <gtest/gtest.h>

namespace sinter::eval {
namespace {

bool equal(const char* a, const char* b) { return minerva_equal(minerva_normalize(a), minerva_normalize(b)); }

TEST(Minerva, VerdictsAreThoseOfSympysGrammar) {
  const std::vector<std::pair<const char*, const char*>> same{{"\\tfrac{6}{1}", "6.0"},  {"x_1", "x_{1}"},
                                                              {"\\binom{5}{2}", "10"},   {"|{-3}|", "3"},
                                                              {"n!", "n \\cdot (n-1)!"}, {"\\lfloor 3.5 \\rfloor", "3"},
                                                              {"12\\,000", "12000"},     {"2/4", "0.5"},
                                                              {"(x+1)^2", "x^2+2x+1"},   {"3\\sqrt{2}", "\\sqrt{18}"},
                                                              {"\\log_2 8", "3"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(equal(a, b)) << a << " and " << b;
  const std::vector<std::pair<const char*, const char*>> other{
      {"x(x+1)", "x^2+x"},  {"\\frac{3}{4}", ".75"}, {"\\cos(\\pi)", "-1"}, {"0.3333333333", "\\frac13"},
      {"\\sqrt{x^2}", "x"}, {"f(2)", "2f"},          {"1/2x", "x/2"},       {"4\\%", "0.04"},
      {"2^-1", "0.5"},      {"1;2", "1,2"}};
  for (const auto& [a, b] : other) EXPECT_FALSE(equal(a, b)) << a << " and " << b;
}

TEST(HendrycksMath, FractionsOfOtherDigitsStayAsTheyAre) {
  EXPECT_EQ(strip_answer("1_0/2"), "1_0/2");
  EXPECT_EQ(strip_answer("１/２"), "１/２");
  EXPECT_EQ(strip_answer("12/34"), "\\frac{12}{34}");
  EXPECT_EQ(strip_answer("a/b"), std::nullopt);
}

}  // namespace
}  // namespace sinter::eval
