#include "engine/random_run.h"

namespace sinter::engine {
namespace {

TEST(RandomRun, EveryRequestGivesItsOwnTokensAndNothingStaysHeld) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    expect_random_run_holds(seed, 500);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sinter::engine
