#include "bench/model_speed.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/cpu.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "bench/engine_run.h"
#include "engine/engine.h"

namespace sinter::bench {
namespace {

struct Spread {
  explicit Spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    least = values.front(), median = values[values.size() / 2], most = values.back();
  }
  double least, median, most;
};

engine::EngineOptions engine_options(const ModelSpeedOptions& options, int64_t batch) {
  engine::EngineOptions o;
  o.max_running = batch;
  o.kv_tokens = batch * (options.prompt + options.new_tokens + 32);
  o.step_tokens = std::max<int64_t>(512, options.prompt);
  o.prefix_cache = false;
  o.kv_format = options.kv_format;
  return o;
}

}  // namespace

Report bench_model(const models::OpenModel& model, const ModelSpeedOptions& options) {
  const double memory_rate = measure_ceilings().read_bytes_per_s;
  Report report{"model",
                fmt::format("{} threads, {}; memory is read at {:.1f} GB/s", base::num_threads(),
                            base::cpu_description(), memory_rate / 1e9),
                {{"work", "work"},
                 {"batch", "batch", 0},
                 {"tokens", "tokens", 0},
                 {"rate", "tok/s", 2},
                 {"least", "slowest", 2},
                 {"most", "fastest", 2},
                 {"read", "read GB/s", 1},
                 {"share", "% of memory's rate", 1}},
                {}};
  auto run_case = [&](int64_t batch, int64_t prompt, int64_t new_tokens) {
    engine::Engine engine(*model.transformer, engine_options(options, batch));
    std::vector<double> rates, reads;
    for (int64_t round = 0; round <= options.rounds; ++round) {
      double before = engine.stats().bytes_read;
      const EngineTimes t = run_requests(
          engine, {.batch = batch, .prompt = prompt, .new_tokens = new_tokens, .seed = static_cast<uint64_t>(round)},
          [&] { before = engine.stats().bytes_read; });
      if (round == 0) continue;
      const bool decodes = new_tokens > 1;
      rates.push_back(decodes ? static_cast<double>(t.decode_tokens) / t.decode_seconds
                              : static_cast<double>(batch * prompt) / t.prefill_seconds);
      if (decodes) reads.push_back((engine.stats().bytes_read - before) / t.decode_seconds);
    }
    const Spread rate(rates);
    std::vector<Cell> row{std::string(new_tokens > 1 ? "decode" : "prompt"),
                          static_cast<double>(batch),
                          static_cast<double>(new_tokens > 1 ? new_tokens - 1 : prompt),
                          rate.median,
                          rate.least,
                          rate.most,
                          Cell{},
                          Cell{}};
    if (!reads.empty()) row[6] = Spread(reads).median / 1e9, row[7] = 100 * Spread(reads).median / memory_rate;
    report.rows.push_back(std::move(row));
  };
  run_case(1, options.prompt, 1);
  for (int64_t batch : options.batches) run_case(batch, 1, options.new_tokens + 1);
  return report;
}

}  // namespace sinter::bench
