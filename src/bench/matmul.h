// The matrix products of GPT-2's training step (forward, input gradient, weight gradient) and a square one, in fp32 and
// bf16: GFLOP/s, the share of the ceiling, and the peer's GFLOP/s on the same memory in the same run.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

Report bench_matmul(const Options&);
// Products of few rows with a packed weight, as decoding does them: GB/s of weight read, and the share of the memory's.
Report bench_decode_matmul(const Options&);

}  // namespace sinter::bench
