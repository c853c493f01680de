// Generation on a device, with random weights made there: decoding at several batch sizes and contexts, prompts, and a
// list of requests served as they come.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// Rows: tokens a second and the share of the device's copy rate at which weights, keys and values were read.
Report bench_decode(const Options& options);
// 256 requests of 32 to 1,024 prompt tokens and 256 new ones, all at once.
Report bench_serve(const Options& options);

}  // namespace sinter::bench
