// The bubble of a pipeline between the ranks of this launch, beside theory and the simulator.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// Every schedule through the trainer's own runner: stages that sleep in every block, so that any number of them can
// share a machine, and on two ranks stages that compute. Every rank calls it; the report is the first rank's. Throws
// base::Error on one rank.
Report bench_pipeline(const Options& options);

}  // namespace sinter::bench
