// How fast weights come from a folder to a GPU.
#pragma once
#include "bench/report.h"

namespace sinter::bench {

// 7B in bf16 and in f32 from a folder that it writes below the folder for temporary files and removes again: GB/s, the
// share of the copy rate from host memory. The files are in the page cache. No rows without a GPU.
Report bench_gpu_load(const Options& options);

}  // namespace sinter::bench
