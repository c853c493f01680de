#include "train/balance.h"

#include <gtest/gtest.h>

namespace sinter::train {
namespace {

TEST(Balance, ARankThatWorksMuchLongerIsNamed) {
  const std::string text = describe_balance({5, 5.2, 9.5, 5.1}, 10);
  EXPECT_NE(text.find("50 to 95 %"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2 worked 1.8 times as long"), std::string::npos) << text;
}

TEST(Balance, RanksThatWorkAlikeAreNotNamed) {
  EXPECT_EQ(describe_balance({8.9, 9.1, 9.0}, 10).find("rank "), std::string::npos);
}

}  // namespace
}  // namespace sinter::train
