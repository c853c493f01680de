#include "spec/stages.h"

#include <gtest/gtest.h>

namespace sinter::spec {
namespace {

std::vector<int64_t> counts_of(const std::vector<LayerRange>& stages) {
  std::vector<int64_t> counts;
  int64_t next = 0;
  for (const LayerRange& range : stages) {
    EXPECT_EQ(range.begin, next);
    next += range.count;
    counts.push_back(range.count);
  }
  return counts;
}

TEST(Stages, TheLastTakesFewerLayersBesideALargeHead) {
  const std::vector<double> gpt2(12, 1.0);  // whose head is 5.4 layers
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(counts_of(stages_by_cost(gpt2, 5.4, 1)), Counts({12}));
  EXPECT_EQ(counts_of(stages_by_cost(gpt2, 5.4, 2)), Counts({9, 3}));
  EXPECT_EQ(counts_of(stages_by_cost(gpt2, 5.4, 4)), Counts({4, 4, 3, 1}));
  EXPECT_EQ(counts_of(stages_by_cost(gpt2, 0.2, 2)), Counts({6, 6})) << "nothing is won by fewer";
  const std::vector<double> uneven{1, 1, 1, 1, 4, 4};
  EXPECT_EQ(counts_of(stages_by_cost(uneven, 5, 2)), Counts({5, 1}));
}

}  // namespace
}  // namespace sinter::spec
