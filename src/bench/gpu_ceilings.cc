#include "bench/gpu_ceilings.h"

#include <fmt/core.h>

#include "bench/device_bench.h"

namespace sinter::bench {
namespace {

using core::DType;
using core::Tensor;

constexpr int64_t kSide = 8192;
constexpr size_t kCopiedBytes = size_t{2} << 30;

double product_flops(DeviceBench& b, DType dtype) {
  Tensor x = b.values({kSide, kSide}, dtype), w = b.values({kSide, kSide}, dtype), y = b.values({kSide, kSide}, dtype);
  kernels::MatmulArgs args;
  args.a = x, args.b.data = w, args.c = y, args.transpose_b = true;
  constexpr double kFlops = 2.0 * kSide * kSide * kSide;
  return kFlops / b.time([&] { b.table().matmul(b.stream(), args); });
}

}  // namespace

DeviceCeilings measure_ceilings(core::Device device) {
  DeviceBench b(device);
  DeviceCeilings c;
  c.matmul_flops = product_flops(b, DType::bf16);
  c.matmul_f32_flops = product_flops(b, DType::f32);
  constexpr auto kElements = static_cast<int64_t>(kCopiedBytes / 2);
  Tensor from = b.values({kElements}, DType::bf16), to = b.values({kElements}, DType::bf16);
  c.copy_bytes = 2.0 * static_cast<double>(kCopiedBytes) /
                 b.time([&] { b.runtime().copy_within(to.raw(), from.raw(), kCopiedBytes, b.stream()); });
  return c;
}

Report bench_gpu_ceilings(const Options& options) {
  Report report{.name = "gpu_ceilings",
                .title = "",
                .columns = {{"limit", "limit"}, {"value", "value", 2}, {"unit", "unit"}, {"by", "measured by"}},
                .rows = {}};
  if (!core::cuda_runtime(0)) return report;
  const core::Device gpu{core::DeviceKind::cuda, 0};
  report.title = fmt::format("The GPU's ceilings: {}", core::runtime(gpu).description());
  const DeviceCeilings c = measure_ceilings(gpu);
  const std::string product = fmt::format("product of {0} x {0} x {0}", kSide);
  auto add = [&](const std::string& limit, double value, const char* unit, const std::string& by) {
    if (limit.find(options.only) != std::string::npos) report.rows.push_back({limit, value, unit, by});
  };
  add("bf16 product", c.matmul_flops / 1e12, "TFLOP/s", product);
  add("f32 product", c.matmul_f32_flops / 1e12, "TFLOP/s", product + " (TF32 where SINTER_TF32=1)");
  add("copy", c.copy_bytes / 1e12, "TB/s", "2 GiB copied, bytes read and written");
  return report;
}

}  // namespace sinter::bench
