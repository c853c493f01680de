#include "engine/random_run.h"

namespace sinter::engine {
namespace {

TEST(RandomRun, EveryRequestGivesItsOwnTokensAndNothingStaysHeld) {
  int64_t preemptions = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    expect_random_run_holds(seed, 500, &preemptions);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(preemptions, 0);
}

}  // namespace
}  // namespace sinter::engine
