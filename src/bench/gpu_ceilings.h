// A GPU's own limits, which the speeds of its kernels are printed beside.
#pragma once
#include "bench/report.h"
#include "core/device.h"

namespace sinter::bench {

struct DeviceCeilings {
  double matmul_flops = 0;      // per second: bf16 product of 8192^3
  double matmul_f32_flops = 0;  // likewise in f32 (or TF32 when that is switched on)
  double copy_bytes = 0;        // bytes read and written per second
};

// Works on any device with a kernel table; made for GPUs, where it takes a second or two.
DeviceCeilings measure_ceilings(core::Device device);

// No rows without a GPU. Of the limits those whose name contains options.only.
Report bench_gpu_ceilings(const Options& options);

}  // namespace sinter::bench
