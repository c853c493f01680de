#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"
#include "data/rank/ngram_model.h"

namespace sinter::data {
namespace {

std::string train(const std::vector<std::string>& lines, const NgramTraining& training) {
  std::string arpa;
  train_ngrams(lines, training, [&](std::string_view piece) { arpa += piece; });
  return arpa;
}

const std::vector<std::string>& some_lines() {
  static const std::vector<std::string> lines = [] {
    const char* words[] = {"a", "b", "c", "d", "e", "f", "g", "h"};
    std::vector<std::string> made;
    uint32_t state = 7;
    for (int i = 0; i < 200; ++i) {
      std::string line;
      for (int w = 0; w < 3 + i % 7; ++w) {
        state = state * 1664525 + 1013904223;
        const uint32_t draw = (state >> 16) % 64;
        line += std::string(w > 0 ? " " : "") + words[draw % 8 < 5 ? draw % 3 : draw / 8];
      }
      made.push_back(line);
    }
    return made;
  }();
  return lines;
}

TEST(NgramTraining, TheProbabilitiesAfterAnyContextSumToOne) {
  for (const std::vector<int64_t>& prune : {std::vector<int64_t>{}, {0, 0, 1}, {0, 2}}) {
    for (const int64_t order : {1, 2, 3, 4}) {
      const NgramModel model = NgramModel::from_text(train(some_lines(), {order, prune}), "test");
      EXPECT_EQ(model.order(), order);
      for (const char* context : {"", "a", "a b", "h h", "c a b", "unseen"}) {
        double sum = 0;
        for (const char* word : {"a", "b", "c", "d", "e", "f", "g", "h", "</s>", "never"}) {
          const std::string line = std::string(context) + " " + word;
          sum += std::pow(10, model.steps(line, true, false).back().log10);
        }
        EXPECT_NEAR(sum, 1, 1e-4) << "order " << order << " after '" << context << "'";
      }
    }
  }
}

TEST(NgramTraining, SmallCountsGiveTheNumbersOfKneserAndNey) {
  const NgramModel model = NgramModel::from_text(train({"a b", "a b", "a c"}, {2, {}}), "test");
  auto p = [&](const std::string& line) { return std::pow(10, model.steps(line, true, false).back().log10); };
  // Different words before a, b and c 1, before </s> 2. None has 3, so the discounts are .5, 1 and 1.5: they leave
  // (3 * .5 + 1) / 5 for the 5 words, <unk> among them.
  const double uniform = (3 * .5 + 1) / 5 / 5, b = .5 / 5 + uniform;
  // Two pairs were seen once, two twice, one three times and none four times: y = 2 / (2 + 2 * 2).
  const double y = 1. / 3, d1 = 1 - 2 * y * 2 / 2, d2 = 2 - 3 * y * 1 / 2, left = (d1 + d2) / 3;
  EXPECT_NEAR(p("a b"), (2 - d2) / 3 + left * b, 1e-6);
  EXPECT_NEAR(p("a c"), (1 - d1) / 3 + left * b, 1e-6);
  EXPECT_NEAR(p("a unknown"), left * uniform, 1e-6);
}

TEST(NgramTraining, WhatCannotBeTrainedIsRefused) {
  EXPECT_THROW(train({}, {2, {}}), base::Error);
  EXPECT_THROW(train({"a"}, {0, {}}), base::Error);
  EXPECT_THROW(train({"a"}, {2, {1}}), base::Error);
  EXPECT_THROW(train({"a"}, {3, {0, 2, 1}}), base::Error);
}

}  // namespace
}  // namespace sinter::data
