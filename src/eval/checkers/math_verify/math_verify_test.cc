// Verdicts of math-verify 0.9.0 (sympy 1.14, antlr 4.11), computed by it for these pairs and texts.
#include <gtest/gtest.h>

#include "eval/checkers/math_verify/answers.h"
#include "eval/checkers/math_verify/compare.h"

namespace sinter::eval {
namespace {

using Pairs = std::vector<std::pair<const char*, const char*>>;

bool holds(const std::string& wanted, const std::string& given) {
  return math_verified("$" + wanted + "$", "$" + given + "$");
}

TEST(MathVerify, SameNumbersInAnotherFormAreRight) {
  const Pairs same{{"\\frac{1}{3}", "0.333333"},
                   {"1,000,000", "1000000"},
                   {"2\\frac{1}{3}", "\\frac{7}{3}"},
                   {"12 \\text{ cm}^2", "12"},
                   {"\\$12.50", "12.5"},
                   {"90^\\circ", "90"},
                   {"50 degrees", "50"},
                   {"\\sqrt{8}", "2\\sqrt{2}"},
                   {"2^10", "1024"},
                   {"\\log 100", "2"},
                   {"\\binom{5}{2}", "10"},
                   {"e^{i\\pi}", "e^{\\pi i}"},
                   {"6:5", "\\frac{6}{5}"},
                   {"1011_2", "1011"},
                   {"\\tan^{-1} 1", "\\frac{\\pi}{4}"},
                   {"5\\%", "5"},
                   {"-(-3)", "3"},
                   {"\\sqrt[3]{8}", "2"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(holds(a, b)) << a << " and " << b;
}

TEST(MathVerify, OtherNumbersAreWrong) {
  const Pairs other{{"\\frac{1}{3}", "0.33333"},
                    {"90^\\circ", "\\frac{\\pi}{2}"},
                    {"50\\%", "0.5"},
                    {"123456789012345678901", "123456789012345678902"},
                    {"\\infty", "-\\infty"},
                    {"i^2", "-1"}};
  for (const auto& [a, b] : other) EXPECT_FALSE(holds(a, b)) << a << " and " << b;
}

TEST(MathVerify, FormulasAreTheirValues) {
  const Pairs same{
      {"x^2-1", "(x-1)(x+1)"}, {"\\sin 2x", "2\\sin x\\cos x"}, {"\\sqrt{x^2}", "|x|"}, {"2n\\pi", "2\\pi n"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(holds(a, b)) << a << " and " << b;
  const Pairs other{{"f(2)", "2f"}, {"\\sqrt{x^2}", "x"}, {"a", "b"}, {"x", "x+0"}};
  for (const auto& [a, b] : other) EXPECT_FALSE(holds(a, b)) << a << " and " << b;
}

TEST(MathVerify, SetsHaveNoOrderTuplesAndIntervalsHave) {
  const Pairs same{{"1,2,3", "3,2,1"},
                   {"\\pm 3", "3,-3"},
                   {"3 \\text{ and } 4", "4,3"},
                   {"(1,2)", "1,2"},
                   {"(-\\infty,1)\\cup(1,\\infty)", "\\mathbb{R}\\setminus\\{1\\}"},
                   {"[0,1]\\cup[1,2]", "[0,2]"},
                   {"x<3", "(-\\infty,3)"},
                   {"1<x<2", "(1,2)"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(holds(a, b)) << a << " and " << b;
  const Pairs other{{"(1,2,3)", "(3,2,1)"}, {"[1,2]", "(1,2)"}, {"(1,2)", "(2,1)"}, {"(-\\infty,3)", "x<3"}};
  for (const auto& [a, b] : other) EXPECT_FALSE(holds(a, b)) << a << " and " << b;
}

TEST(MathVerify, AnEquationCountsAsItsRightSideOnlyWhereAValueIsWanted) {
  const Pairs same{{"5", "x=5"}, {"x=5", "5"}, {"y=2x+1", "2x-y+1=0"}, {"x+y=1", "2x+2y=2"}, {"x>3", "3<x"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(holds(a, b)) << a << " and " << b;
  const Pairs other{{"x=5", "y=5"}, {"2x=4", "x=2"}, {"x>3", "2x>6"}};
  for (const auto& [a, b] : other) EXPECT_FALSE(holds(a, b)) << a << " and " << b;
}

TEST(MathVerify, WordsAndMatricesAreCompared) {
  const Pairs same{{"\\text{Monday}", "\\text{monday}"},
                   {"\\text{(A)}", "A"},
                   {"\\text{east}", "east"},
                   {"2\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}2\\\\4\\end{bmatrix}"}};
  for (const auto& [a, b] : same) EXPECT_TRUE(holds(a, b)) << a << " and " << b;
  EXPECT_FALSE(holds("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{pmatrix}1\\\\3\\end{pmatrix}"));
}

TEST(MathVerify, AnAnswerIsFoundWhereItStands) {
  const std::string solution = "Half of $8$ is $4$, so we get $x = \\boxed{\\frac{3}{4}}$ of it.";
  for (const char* text : {"Final Answer: The final answer is $\\frac34$. I hope it is correct.", "Thus \\boxed{0.75}.",
                           "the answer is 3/4", "We had $5$, then $0.75$ at last.", "It is 75/100."}) {
    EXPECT_TRUE(math_verified(solution, text)) << text;
  }
  for (const char* text : {"", "no answer", "\\boxed{", "$\\frac{3}{4}$ is wrong, \\boxed{4}", "$$$"}) {
    EXPECT_FALSE(math_verified(solution, text)) << text;
  }
}

TEST(MathVerify, HostileTextsEnd) {
  std::string nested, row;
  for (int i = 0; i < 3000; ++i) nested += "f(", row += "$1$, ";
  EXPECT_FALSE(math_verified("$1$", "$" + nested + "$"));
  EXPECT_FALSE(math_verified("$7$", row));
  EXPECT_FALSE(math_verified("$7$", "answer" + std::string(20000, '=')));
  EXPECT_FALSE(math_verified("$7$", std::string(20000, '{') + "\\boxed{"));
}

}  // namespace
}  // namespace sinter::eval
