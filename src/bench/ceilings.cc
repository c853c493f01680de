#include "bench/ceilings.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "base/cpu.h"
#include "base/threads.h"
#include "core/device.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::bench {
namespace {

// All threads at once; the best of a few short rounds, since a neighbour's work or a slow clock only ever takes away.
double flops_of(const kernels::cpu::MatmulKernel& kernel) {
  int threads = base::num_threads();
  std::vector<double> done(static_cast<size_t>(threads));
  double best = 0;
  int64_t steps = 20000;
  double begin = now_seconds();
  while (now_seconds() - begin < 0.25) {
    double start = now_seconds();
    base::parallel_for(threads, 1, [&](int64_t i, int64_t) {
      kernel.enter();
      done[static_cast<size_t>(i)] = kernel.spin(steps);
      kernel.leave();
    });
    double taken = now_seconds() - start;
    best = std::max(best, std::accumulate(done.begin(), done.end(), 0.0) / taken);
    if (taken < 0.01) steps *= 2;
  }
  return best;
}

// `count` words as `num_streams` stretches side by side, each asked for ahead.
uint64_t sum_of(const uint64_t* data, int64_t count, int64_t num_streams) {
  constexpr int64_t kLine = 8, kAhead = 16 * kLine;
  uint64_t sums[kLine] = {};
  const int64_t length = count / num_streams;
  for (int64_t i = 0; i + kLine <= length; i += kLine) {
    for (const uint64_t* at = data + i; at < data + num_streams * length; at += length) {
      __builtin_prefetch(at + kAhead, 0, 0);
      for (int64_t j = 0; j < kLine; ++j) sums[j] += at[j];
    }
  }
  return std::accumulate(sums, sums + kLine, uint64_t{0});
}

// One stream leaves requests unused on some CPUs, several cost others theirs: the better counts.
double read_bandwidth() {
  size_t free_bytes = core::runtime({}).free_memory_bytes();
  int64_t bytes = static_cast<int64_t>(std::min(size_t{1} << 30, free_bytes / 4));
  int64_t count = bytes / 8;
  constexpr int64_t kPiece = 1 << 17;  // 1 MiB
  kernels::cpu::AlignedBuffer buffer;
  auto* data = buffer.reserve_array<uint64_t>(count);
  base::parallel_for(count, kPiece, [&](int64_t begin, int64_t end) { std::fill(data + begin, data + end, begin); });
  std::atomic<uint64_t> sink{0};
  double seconds = 1e30;
  for (int64_t num_streams : {1, 4}) {
    seconds = std::min(seconds, best_seconds(0.25, [&] {
                         base::parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
                           sink.fetch_add(sum_of(data + begin, end - begin, num_streams), std::memory_order_relaxed);
                         });
                       }));
  }
  return static_cast<double>(bytes) / seconds;
}

}  // namespace

Ceilings measure_ceilings() {
  Ceilings c;
  c.fp32_flops = flops_of(kernels::cpu::matmul_kernel(base::DType::f32));
  c.bf16_flops = std::max(c.fp32_flops, flops_of(kernels::cpu::matmul_kernel(base::DType::bf16)));
  c.read_bytes_per_s = read_bandwidth();
  return c;
}

Report bench_ceilings(const Options&) {
  Ceilings c = measure_ceilings();
  Report report;
  report.name = "ceilings";
  report.title = fmt::format("This machine's ceilings: {} thread{}, {}", base::num_threads(),
                             base::num_threads() == 1 ? "" : "s", base::cpu_description());
  report.columns = {{"limit", "limit"}, {"value", "value"}, {"unit", "unit"}, {"by", "measured by"}};
  auto instruction = [](base::DType dtype) {
    return fmt::format("{} multiply-adds on registers", kernels::cpu::matmul_kernel(dtype).name);
  };
  report.rows = {{"fp32", c.fp32_flops / 1e9, "GFLOP/s", instruction(base::DType::f32)},
                 {"bf16", c.bf16_flops / 1e9, "GFLOP/s", instruction(base::DType::bf16)},
                 {"memory read", c.read_bytes_per_s / 1e9, "GB/s", "sum over up to 1 GiB"}};
  return report;
}

}  // namespace sinter::bench
