// Generation on a device, with random weights made there: decoding at several batch sizes and contexts, prompts, and a
// list of requests served as they come.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// Rows: tokens a second, the share of the device's copy rate at which weights, keys and values were read, and the share
// of the time in which the device may have had nothing to do.
Report bench_decode(const Options& options);
// Prompts, whole and behind a cached half: the share of the device's product rate.
Report bench_prefill(const Options& options);
// Choices scored as evaluations do: how many tokens a second, and how many were found in the cache.
Report bench_score(const Options& options);
// 256 requests, weights in bf16 and in fp8, of 32 to 1,024 prompt tokens and 256 new ones, all at once.
Report bench_serve(const Options& options);

}  // namespace sinter::bench
