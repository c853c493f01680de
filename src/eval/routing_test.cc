#include "eval/routing.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sinter::eval {
namespace {

TEST(Routing, TheLowerOfEqualExpertsIsChosenFirst) {
  const std::vector<float> logits = {0.5f, 2.0f, 0.5f, -1.0f, 2.0f};
  EXPECT_EQ(choose_experts(logits, 3), (std::vector<int32_t>{1, 4, 0}));
}

TEST(Routing, AGapIsAShareOfTheLogitsDeviation) {
  const std::vector<float> logits = {1.0f, -1.0f, 3.0f, -3.0f};  // deviation sqrt(5)
  RouterChoice choice = closest_choice(logits, 2);
  EXPECT_EQ(choice.chosen, 0);
  EXPECT_EQ(choice.other, 1);
  EXPECT_DOUBLE_EQ(choice.gap, 2 / std::sqrt(5.0));
  EXPECT_TRUE(std::isinf(closest_choice(logits, 4).gap));
  const std::vector<float> level = {1.0f, 1.0f};
  EXPECT_EQ(closest_choice(level, 1).gap, 0);
}

TEST(Routing, FollowingExchangesOnlyWhatOneOfTwoChooses) {
  std::vector<float> logits = {0.1f, 0.9f, 0.8f, 0.7f};
  const std::vector<float> reference = {0.75f, 0.9f, 0.1f, 0.7f};
  std::vector<RouterChoice> pairs = follow_choice(logits, reference, 2);
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0].chosen, 2);
  EXPECT_EQ(pairs[0].other, 0);
  EXPECT_GT(pairs[0].gap, 2);  // 0.65 where the deviation is 0.31
  EXPECT_EQ(logits, (std::vector<float>{0.8f, 0.9f, 0.1f, 0.7f}));
  EXPECT_TRUE(follow_choice(logits, reference, 2).empty());
}

TEST(Routing, RowsAreEditedInPlace) {
  core::Tensor logits = core::make_tensor<float>(core::runtime({}).allocator(), {2, 3}, {0, 1, 2, 3, 4, 5});
  edit_rows(logits, [](int64_t token, std::span<float> row) { row[static_cast<size_t>(token)] = -1; });
  EXPECT_EQ(core::to_host<float>(logits), (std::vector<float>{-1, 1, 2, 3, -1, 5}));
}

}  // namespace
}  // namespace sinter::eval
