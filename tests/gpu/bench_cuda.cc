// bench_cuda [config ...]: the kernel benchmark of src/bench/cuda_kernels.h as a program of its own.
#include <cstdio>
#include <exception>

#include "bench/cuda_kernels.h"

int main(int argc, char** argv) {
  using namespace sinter;
  core::Device device{core::DeviceKind::cuda, 0};
  if (!core::cuda_runtime(0)) {
    std::printf("no GPU: nothing was measured\n");
    return 0;
  }
  try {
    std::printf("%s\n", core::runtime(device).description().c_str());
    bench::DeviceCeilings ceilings = bench::measure_ceilings(device);
    std::printf("ceilings: bf16 product %.0f TFLOP/s, f32 product %.1f TFLOP/s, copy %.2f TB/s\n",
                ceilings.matmul_flops * 1e-12, ceilings.matmul_f32_flops * 1e-12, ceilings.copy_bytes * 1e-12);
    std::fflush(stdout);
    for (const bench::StepShape& shape : bench::training_shapes()) {
      bool wanted = argc == 1;
      for (int i = 1; i < argc; ++i) wanted = wanted || shape.name == argv[i];
      if (wanted) bench::print_kernels(bench::measure_kernels(device, shape), shape, ceilings);
    }
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
  return 0;
}
