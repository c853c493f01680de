// One optimizer step of GPT-2 124M on random tokens, in fp32 and bf16: tokens/s, GFLOP/s over model FLOPs
// (6 N + 6 L T C per token), the share of the machine's ceiling, and where the time goes.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

Report bench_train_step(const Options&);

}  // namespace sinter::bench
