// Steps of adapters over a frozen base on a GPU, with random weights made there.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// LoRA and QLoRA (NF4) of rank 16 on all linear layers of 8B, sequences of 2,048, and one step of 70B in NF4: tokens a
// second and the memory that was reached. A case that does not fit is a row without numbers. No rows without a GPU.
Report bench_gpu_tune_step(const Options& options);

}  // namespace sinter::bench
