#include "engine/random_run.h"

namespace sinter::engine {
namespace {

TEST(RandomRun, AMillionStepsHold) {
  int64_t preemptions = 0;
  for (uint64_t seed = 100; seed < 200; ++seed) {
    expect_random_run_holds(seed, 10000, &preemptions);
    if (::testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(preemptions, 0);
}

}  // namespace
}  // namespace sinter::engine
