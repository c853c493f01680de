#include "train/peak.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>

#include "kernels/table.h"

namespace sinter::train {

namespace {

double measure(core::Device device, core::DType dtype) {
  core::DeviceRuntime& runtime = core::runtime(device);
  const kernels::KernelTable& kernels = kernels::kernels_for(device);
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  double best = 0;
  const double end = now() + 0.25;
  // Grows the product while it is too short to time well.
  for (int64_t n = 256; now() < end;) {
    core::Tensor a(runtime.allocator(), {n, n}, dtype), b(runtime.allocator(), {n, n}, dtype),
        c(runtime.allocator(), {n, n}, dtype);
    kernels.fill(runtime.stream(), a, 0.5f);
    kernels.fill(runtime.stream(), b, 0.25f);
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    double shortest = 1e9;
    for (int i = 0; i < 4 && (i == 0 || now() < end); ++i) {
      runtime.synchronize(runtime.stream());
      const double begin = now();
      kernels.matmul(runtime.stream(), {.a = a, .b = {.data = b}, .c = c, .transpose_b = true});
      runtime.synchronize(runtime.stream());
      shortest = std::min(shortest, now() - begin);
    }
    best = std::max(best, flops / shortest);
    if (shortest < 0.02 && n < 8192) n *= 2;
  }
  return best;
}

}  // namespace

double measure_matmul_flops(core::Device device, core::DType dtype) {
  static std::map<std::pair<std::string, core::DType>, double> known;
  double& flops = known[{device.to_string(), dtype}];
  if (flops == 0) flops = measure(device, dtype);
  return flops;
}

}  // namespace sinter::train
