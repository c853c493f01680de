#include "bench/matmul.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/rng.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "bench/peer.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::bench {
namespace {

using base::DType;
using base::Shape;
using core::Tensor;
using kernels::MatmulArgs;

Tensor random_tensor(Shape shape, DType dtype) {
  Tensor t(core::runtime({}).allocator(), shape, dtype);
  base::CounterRng rng{1, 2};
  int64_t count = t.num_elements();
  base::parallel_for(count, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      float value = 2 * rng.uniform(static_cast<uint64_t>(i)) - 1;
      if (dtype == DType::f32) {
        t.data<float>()[i] = value;
      } else {
        t.data<base::bf16>()[i] = base::bf16(value);
      }
    }
  });
  return t;
}

struct Case {
  const char* use;  // how GPT-2 uses it
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
};

std::vector<Case> make_cases(bool is_full) {
  std::vector<Case> cases = {{"square", 2048, 2048, 2048, false, true, false}};
  const int64_t layers[][2] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {50304, 768}};  // (out, in)
  for (int64_t tokens : {256, 4096}) {
    if (tokens > 256 && !is_full) break;
    for (auto [out, in] : layers) {
      cases.push_back({"forward", tokens, out, in, false, true, false});
      cases.push_back({"dgrad", tokens, in, out, false, false, false});
      cases.push_back({"wgrad", out, in, tokens, true, false, true});
    }
  }
  return cases;
}

MatmulArgs make_args(const Case& c, DType dtype) {
  MatmulArgs args;
  args.a = random_tensor(c.transpose_a ? Shape{c.k, c.m} : Shape{c.m, c.k}, dtype);
  args.b.data = random_tensor(c.transpose_b ? Shape{c.n, c.k} : Shape{c.k, c.n}, dtype);
  args.c = random_tensor({c.m, c.n}, c.accumulate ? DType::f32 : dtype);
  args.transpose_a = c.transpose_a;
  args.transpose_b = c.transpose_b;
  args.accumulate = c.accumulate;
  return args;
}

struct ProductTimes {
  double ours = 0, theirs = 0;  // seconds, the best; 0: no peer
  double ratio = 0;             // theirs to ours, the median over turns
};

// Ours and the peer's in short turns, so that whatever slows the machine for a while slows both, and each turn of ours
// is held against the peer's right after it. The best of a turn counts.
ProductTimes time_both(const MatmulArgs& args, double seconds) {
  constexpr double kTurn = 0.02;  // several calls of most products: the first after the pause wakes our threads
  constexpr std::chrono::milliseconds kPause(15);  // for as long OpenMP's threads spin after a call, on our CPUs
  core::Stream& stream = core::runtime({}).stream();
  std::unique_ptr<PeerProduct> peer = make_peer_product(args);
  ProductTimes times{1e300, 1e300};
  std::vector<double> ratios;
  for (double begin = now_seconds(); ratios.size() < 3 || now_seconds() - begin < seconds;) {
    double ours = best_seconds(kTurn, [&] { kernels::cpu::matmul(stream, args); });
    times.ours = std::min(times.ours, ours);
    double theirs = peer ? best_seconds(kTurn, [&] { peer->run(); }) : 0.0;
    times.theirs = std::min(times.theirs, theirs);
    ratios.push_back(theirs / ours);
    if (peer) std::this_thread::sleep_for(kPause);
  }
  std::nth_element(ratios.begin(), ratios.begin() + ratios.size() / 2, ratios.end());
  times.ratio = ratios[ratios.size() / 2];
  return times;
}

}  // namespace

Report bench_matmul(const Options& options) {
  Ceilings ceilings = measure_ceilings();
  Report report;
  report.name = "matmul";
  report.title = fmt::format("Matrix products, {} threads; peer: {}", base::num_threads(),
                             peer_name().empty() ? "none built in" : peer_name());
  report.columns = {{"format", "format"},
                    {"use", "use"},
                    {"m", "M", 0},
                    {"n", "N", 0},
                    {"k", "K", 0},
                    {"gflops", "GFLOP/s"},
                    {"share", "% of ceiling", 0},
                    {"peer_gflops", "peer's"},
                    {"ratio", "ours/peer's", 2}};
  for (DType dtype : {DType::f32, DType::bf16}) {
    double ceiling = dtype == DType::f32 ? ceilings.fp32_flops : ceilings.bf16_flops;
    for (const Case& c : make_cases(options.is_full)) {
      auto [ours, theirs, ratio] = time_both(make_args(c, dtype), options.case_seconds);
      double flops = 2.0 * static_cast<double>(c.m * c.n) * static_cast<double>(c.k);
      std::vector<Cell> row = {std::string(base::dtype_name(dtype)),
                               c.use,
                               static_cast<double>(c.m),
                               static_cast<double>(c.n),
                               static_cast<double>(c.k),
                               flops / ours / 1e9,
                               100 * flops / ours / ceiling,
                               Cell{},
                               Cell{}};
      if (theirs > 0) {
        row[7] = flops / theirs / 1e9;
        row[8] = ratio;
      }
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

Report bench_decode_matmul(const Options& options) {
  Ceilings ceilings = measure_ceilings();
  Report report;
  report.name = "decode_matmul";
  report.title = fmt::format("Products of few rows with a packed weight, {} threads", base::num_threads());
  report.columns = {{"format", "format"}, {"m", "M", 0},    {"n", "N", 0},
                    {"k", "K", 0},        {"gbps", "GB/s"}, {"share", "% of memory's rate", 0}};
  core::Stream& stream = core::runtime({}).stream();
  constexpr int64_t kN = 16384, kK = 8192;  // beyond any cache
  for (DType dtype : {DType::f32, DType::bf16}) {
    std::shared_ptr<core::DerivedWeight> derived;
    for (int64_t m : {1, 2, 4, 8, 16}) {
      MatmulArgs args = make_args({"decode", m, kN, kK, false, true, false}, dtype);
      args.b.derived = &derived;
      double seconds = best_seconds(options.case_seconds, [&] { kernels::cpu::matmul(stream, args); });
      double rate = static_cast<double>(args.b.data.bytes()) / seconds;
      report.rows.push_back({std::string(base::dtype_name(dtype)), static_cast<double>(m), static_cast<double>(kN),
                             static_cast<double>(kK), rate / 1e9, 100 * rate / ceilings.read_bytes_per_s});
    }
  }
  return report;
}

}  // namespace sinter::bench
