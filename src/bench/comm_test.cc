#include "bench/comm.h"

#include <gtest/gtest.h>

namespace sinter::bench {
namespace {

TEST(BenchComm, TheFitFindsLatencyAndBandwidth) {
  const std::vector<double> bytes{1e3, 1e4, 1e5, 1e6, 1e7};
  std::vector<double> seconds;
  for (double b : bytes) seconds.push_back(2e-6 + b / 5e9);
  const LineFit fit = fit_line(bytes, seconds);
  EXPECT_NEAR(fit.alpha, 2e-6, 1e-11);
  EXPECT_NEAR(1 / fit.per_byte, 5e9, 1e3);
  EXPECT_NEAR(fit.r_squared, 1, 1e-9);
  seconds[2] *= 1.5;
  EXPECT_LT(fit_line(bytes, seconds).r_squared, 0.99);
}

TEST(BenchComm, ThePlannerGetsARingsStepAndItsRate) {
  Report report;
  report.rows = {{"all_reduce", 1e6, 1.0, 1.0, 1.0, {}, {}, {}},
                 {"all_reduce, fitted", {}, {}, {}, {}, 12.0, 3.0, 1.0},
                 {"send, fitted", {}, {}, {}, {}, 2.0, 5.0, 1.0}};
  const Links links = links_of(report, 4);  // six steps, each of a quarter of the buffer
  EXPECT_NEAR(links.latency, 2e-6, 1e-12);
  EXPECT_NEAR(links.bandwidth, 4.5e9, 1);
  EXPECT_NEAR(links.pair_bandwidth, 5e9, 1);
}

}  // namespace
}  // namespace sinter::bench
