#include "train/peak.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "kernels/table.h"

namespace sinter::train {

namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Numbers as they come in training: a GPU draws less power on constant ones, and runs faster than it ever will.
core::Tensor random_square(core::DeviceRuntime& runtime, int64_t n, core::DType dtype) {
  core::Tensor t(runtime.allocator(), {n, n}, dtype);
  const size_t count = std::min<size_t>(static_cast<size_t>(n * n), size_t{1} << 18);
  base::CounterRng rng{7, 7};
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = rng.uniform(i) - 0.5f;
  std::vector<std::byte> raw(count * base::dtype_bytes(dtype));
  base::convert_elements(core::DType::f32, values.data(), dtype, raw.data(), count);
  for (size_t at = 0; at < t.bytes(); at += raw.size()) {
    runtime.copy_to_device(t.data<char>() + at, raw.data(), std::min(raw.size(), t.bytes() - at), runtime.stream());
  }
  return t;
}

double measure(core::Device device, core::DType dtype) {
  core::DeviceRuntime& runtime = core::runtime(device);
  const kernels::KernelTable& kernels = kernels::kernels_for(device);
  double best = 0, spent = 0;
  int calls = 0;  // a few at least: on a busy machine one may take all the time
  // Grows the product while it is too short to time well.
  for (int64_t n = 256; spent < 0.2 || (calls < 6 && spent < 2);) {
    const core::Tensor a = random_square(runtime, n, dtype), b = random_square(runtime, n, dtype),
                       c(runtime.allocator(), {n, n}, dtype);
    const double flops = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
    double shortest = 1e9;
    for (int i = 0; i < 4 && (spent < 0.2 || i < 3); ++i, ++calls) {
      runtime.synchronize(runtime.stream());
      const double begin = now_seconds();
      kernels.matmul(runtime.stream(), {.a = a, .b = {.data = b}, .c = c, .transpose_b = true});
      runtime.synchronize(runtime.stream());
      const double seconds = now_seconds() - begin;
      // The first call of a size may choose its algorithm by measuring; that is not part of the time.
      if (i > 0 || device.kind == core::DeviceKind::cpu) spent += seconds;
      shortest = std::min(shortest, seconds);
    }
    best = std::max(best, flops / shortest);
    if (shortest >= 0.02 || n >= 8192) break;
    n = std::min<int64_t>(n * (shortest < 1e-3 ? 4 : 2), 8192);
    // The run's own memory is taken by now: what is left of a GPU may be little.
    const size_t needed = 3 * static_cast<size_t>(n * n) * base::dtype_bytes(dtype) + (size_t{128} << 20);
    if (device.kind == core::DeviceKind::cuda && needed > runtime.free_memory_bytes()) break;
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
