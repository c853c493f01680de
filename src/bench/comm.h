// Collectives between the ranks of this launch: time by size, algorithm and bus bandwidth, and the latency and
// bandwidth that fit them (time = alpha + bytes / beta).
#pragma once
#include <vector>

#include "bench/report.h"

namespace sinter::bench {

struct LineFit {
  double alpha = 0;      // seconds
  double per_byte = 0;   // seconds: 1 / beta
  double r_squared = 0;  // of the relative errors' weights
};
// Least squares of seconds over bytes, each point weighted by 1 / seconds^2: sizes span many powers of ten.
LineFit fit_line(const std::vector<double>& bytes, const std::vector<double>& seconds);

// What the planner takes from the fits (plan::Device): a ring's bandwidth and the latency of one of its steps, from
// all_reduce, and the bandwidth between a pair, from messages.
struct Links {
  double bandwidth = 0, pair_bandwidth = 0;  // bytes/s
  double latency = 0;                        // seconds
};
// From a report of bench_comm of so many ranks.
Links links_of(const Report& report, int ranks);

// Every rank calls it; the report is the same on all. Throws base::Error on one rank.
Report bench_comm(const Options& options);

}  // namespace sinter::bench
