// Formulas of LaTeX from tokens: what stands on one side of a relation.
#pragma once
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "eval/checkers/math_verify/expression.h"
#include "eval/checkers/math_verify/tokens.h"

namespace sinter::eval {

// Goes over tokens from left to right; a caller may try one reading and go back for another. Each function reads what
// its name says from the current place on and throws MathFailure where that does not stand there.
class LatexParser {
 public:
  LatexParser(std::vector<MathToken> tokens, bool is_complex) : tokens_(std::move(tokens)), is_complex_(is_complex) {}

  Math sum();
  // A symbol with its subscript and power.
  Math symbol_factor();

  bool is(std::string_view type) const { return tokens_[at_].type == type; }
  bool is_one_of(std::initializer_list<std::string_view> types) const;
  bool take(std::string_view type);
  void expect(std::string_view type);
  void skip() { ++at_; }
  std::string take_text() { return tokens_[at_++].text; }
  size_t place() const { return at_; }
  void go_back(size_t place) { at_ = place; }

 private:
  Math product(bool is_argument);
  Math signed_factors(bool is_argument);
  Math adjacent(const std::vector<Math>& factors) const;
  Math postfix(bool is_argument);
  Math power(bool is_argument);
  Math component(bool is_argument);
  Math atom();
  Math exponent();
  bool begins_factor(bool is_argument) const;
  Math group(std::string_view open, std::string_view close);
  Math function();
  Math made_up_function();
  Math fraction();
  Math root();
  Math matrix();
  std::string subscript();
  Math named(const std::string& name) const;
  Math accent(const std::string& text, const std::string& subscript_text) const;
  std::string text_between(size_t begin, size_t end) const;
  void count_step();

  std::vector<MathToken> tokens_;
  bool is_complex_;
  size_t at_ = 0;
  int depth_ = 0, num_steps_ = 0;
  bool is_inside_bars_ = false;  // where a bar closes what a bar opened
};

}  // namespace sinter::eval
