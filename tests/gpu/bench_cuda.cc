// bench_cuda [--only part-of-a-name] [config ...]: the kernel benchmark of src/bench/cuda_kernels.h as a program of its
// own.
#include <cstdio>
#include <exception>
#include <string>

#include "bench/cuda_kernels.h"

int main(int argc, char** argv) {
  using namespace sinter;
  core::Device device{core::DeviceKind::cuda, 0};
  if (!core::cuda_runtime(0)) {
    std::printf("no GPU: nothing was measured\n");
    return 0;
  }
  std::string only;
  int first = 1;
  if (argc > 2 && std::string(argv[1]) == "--only") only = argv[2], first = 3;
  try {
    std::printf("%s\n", core::runtime(device).description().c_str());
    bench::DeviceCeilings ceilings = bench::measure_ceilings(device);
    std::printf("ceilings: bf16 product %.0f TFLOP/s, f32 product %.1f TFLOP/s, copy %.2f TB/s\n",
                ceilings.matmul_flops * 1e-12, ceilings.matmul_f32_flops * 1e-12, ceilings.copy_bytes * 1e-12);
    std::fflush(stdout);
    for (const bench::StepShape& shape : bench::training_shapes()) {
      bool wanted = argc == first;
      for (int i = first; i < argc; ++i) wanted = wanted || shape.name == argv[i];
      if (wanted) bench::print_kernels(bench::measure_kernels(device, shape, only), shape, ceilings);
    }
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
  return 0;
}
