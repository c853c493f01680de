// This machine's own limits, which every other speed is printed beside.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

struct Ceilings {
  double fp32_flops = 0;        // per second, all threads: the multiply instruction on registers alone
  double bf16_flops = 0;        // likewise; where the CPU has no bf16 instruction, that of fp32
  double read_bytes_per_s = 0;  // memory read by all threads, over 1 GiB (less where memory is short)
};

// Takes about a second.
Ceilings measure_ceilings();

Report bench_ceilings(const Options&);

}  // namespace sinter::bench
