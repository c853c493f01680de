#include "engine/random_run.h"

namespace sinter::engine {
namespace {

TEST(RandomRun, AMillionStepsHold) {
  for (uint64_t seed = 100; seed < 200; ++seed) {
    expect_random_run_holds(seed, 10000);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace sinter::engine
