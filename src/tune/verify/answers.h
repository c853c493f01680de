// Prompts with the answers that PPO and GRPO learn from, and their values token by token.
#pragma once
#include <functional>
#include <vector>

#include "tune/verify/case_folder.h"
#include "tune/verify/model_pass.h"

namespace sinter::tune {

inline constexpr double kLossLimit = 1e-4;

// Of each row, those of its answer.
using AnswerValues = std::vector<std::vector<double>>;

// Prompts and the answers behind them, and where each answer begins.
struct Answers {
  TokenRows rows;
  std::vector<size_t> begins, lengths;
  // A (B, R) tensor's values of each row's answer.
  AnswerValues of(const Numbers& values) const;
  // The answers' values of what the model gave for every token.
  AnswerValues cut(const RowValues& all) const;
  // And back: every token's, zeros outside of the answers.
  RowValues spread(const AnswerValues& values) const;
  size_t num_tokens() const;
};

// Real tokens of each row of a mask.
std::vector<size_t> lengths_of(const Numbers& mask);

// `lengths`: tokens of each row of `answers` that are real. Of the prompts, those that are.
Answers join(const Numbers& prompts, const Numbers& answers, std::vector<size_t> lengths,
             const std::function<bool(int64_t row, int64_t column)>& is_real);

std::vector<double> flat(const AnswerValues& rows);

void append(Checks& checks, Checks more);

}  // namespace sinter::tune
