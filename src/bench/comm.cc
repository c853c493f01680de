#include "bench/comm.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "comm/communicator.h"

namespace sinter::bench {
namespace {

using core::Tensor;

struct Case {
  const char* name;
  double bus_factor;                             // of the algorithm's bandwidth: what goes over a rank's link
  std::function<void(const Tensor& whole)> run;  // whole: (n) f32, n a multiple of the ranks
};

std::vector<Case> cases_of(comm::Communicator& world) {
  const int64_t N = world.size(), rank = world.rank();
  const double others = static_cast<double>(N - 1) / static_cast<double>(N);
  auto piece = [N, rank](const Tensor& t) { return t.slice(rank * (t.size(0) / N), t.size(0) / N); };
  return {{"all_reduce", 2 * others, [&world](const Tensor& t) { world.all_reduce(t); }},
          {"all_gather", others, [&world, piece](const Tensor& t) { world.all_gather(piece(t), t); }},
          {"reduce_scatter", others,
           [&world, N](const Tensor& t) {
             const Tensor out(core::runtime({}).allocator(), {t.size(0) / N}, t.dtype());
             world.reduce_scatter(t, out);
           }},
          {"broadcast", 1, [&world](const Tensor& t) { world.broadcast(t, 0); }},
          {"all_to_all", others,
           [&world](const Tensor& t) {
             const Tensor out(core::runtime({}).allocator(), {t.size(0)}, t.dtype());
             world.all_to_all(t, out);
           }},
          {"send", 1, [&world, N, rank](const Tensor& t) {
             const Tensor out(core::runtime({}).allocator(), {t.size(0)}, t.dtype());
             comm::Handle sent = world.start_send(t, static_cast<int>((rank + 1) % N));
             world.receive(out, static_cast<int>((rank + N - 1) % N));
             sent->wait();
           }}};
}

// The slowest rank's best time of as many runs on all of them.
double measure(comm::Communicator& world, const Case& c, const Tensor& whole) {
  const auto runs = std::clamp<int64_t>((int64_t{4} << 20) / static_cast<int64_t>(whole.bytes()), 3, 40);
  double best = 1e300;
  for (int64_t i = 0; i <= runs; ++i) {
    world.barrier();
    const double begin = now_seconds();
    c.run(whole);
    double seconds = now_seconds() - begin;
    world.all_reduce(std::span(&seconds, 1), comm::ReduceOp::max);
    if (i > 0) best = std::min(best, seconds);
  }
  return best;
}

}  // namespace

LineFit fit_line(const std::vector<double>& bytes, const std::vector<double>& seconds) {
  double w = 0, wx = 0, wy = 0, wxx = 0, wxy = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double weight = 1 / (seconds[i] * seconds[i]);
    w += weight;
    wx += weight * bytes[i];
    wy += weight * seconds[i];
    wxx += weight * bytes[i] * bytes[i];
    wxy += weight * bytes[i] * seconds[i];
  }
  LineFit fit;
  fit.per_byte = (w * wxy - wx * wy) / (w * wxx - wx * wx);
  fit.alpha = (wy - fit.per_byte * wx) / w;
  double left = 0, all = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const double weight = 1 / (seconds[i] * seconds[i]), off = seconds[i] - fit.alpha - fit.per_byte * bytes[i];
    left += weight * off * off;
    all += weight * (seconds[i] - wy / w) * (seconds[i] - wy / w);
  }
  fit.r_squared = all > 0 ? 1 - left / all : 1;
  return fit;
}

Links links_of(const Report& report, int ranks) {
  auto fitted = [&](const std::string& name, size_t column) {
    for (const std::vector<Cell>& row : report.rows) {
      if (std::get<std::string>(row[0]) == name + ", fitted") return std::get<double>(row[column]);
    }
    base::fail("[comm] the report has no fit of {}", name);
  };
  constexpr size_t kAlpha = 5, kBeta = 6;
  const double steps = 2.0 * (ranks - 1);
  return {.bandwidth = steps / ranks * fitted("all_reduce", kBeta) * 1e9,
          .pair_bandwidth = fitted("send", kBeta) * 1e9,
          .latency = std::max(fitted("all_reduce", kAlpha), 0.1) * 1e-6 / steps};
}

Report bench_comm(const Options& options) {
  comm::Communicator& world = comm::world();
  SINTER_CHECK(world.size() > 1, "comm needs several ranks: mpirun -n 2 sinter bench comm");
  Report report;
  report.name = "comm";
  report.title = fmt::format("Collectives between {} ranks by {} (bytes: the whole buffer; bus: over a rank's link)",
                             world.size(), world.name());
  report.columns = {{"collective", "collective"}, {"bytes", "bytes", 0},      {"us", "us"},
                    {"algorithm_gbs", "GB/s", 3}, {"bus_gbs", "bus GB/s", 3}, {"alpha_us", "alpha us", 2},
                    {"beta_gbs", "beta GB/s", 3}, {"r_squared", "R2", 4}};
  const int64_t most = options.is_full ? int64_t{256} << 20 : int64_t{16} << 20;
  for (const Case& c : cases_of(world)) {
    std::vector<double> sizes, times;
    for (int64_t bytes = 1024; bytes <= most; bytes *= 4) {
      const int64_t n = (bytes / 4 + world.size() - 1) / world.size() * world.size();
      const Tensor whole(core::runtime({}).allocator(), {n}, core::DType::f32);
      std::fill_n(whole.data<float>(), n, 1e-3f);
      const double seconds = measure(world, c, whole), rate = static_cast<double>(whole.bytes()) / seconds / 1e9;
      sizes.push_back(static_cast<double>(whole.bytes()));
      times.push_back(seconds);
      report.rows.push_back({c.name, sizes.back(), seconds * 1e6, rate, rate * c.bus_factor, {}, {}, {}});
    }
    const LineFit fit = fit_line(sizes, times);
    report.rows.push_back(
        {fmt::format("{}, fitted", c.name), {}, {}, {}, {}, fit.alpha * 1e6, 1e-9 / fit.per_byte, fit.r_squared});
  }
  return report;
}

}  // namespace sinter::bench
