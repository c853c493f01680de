#include "bench/tune_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/rng.h"
#include "bench/random_weights.h"
#include "comm/communicator.h"
#include "spec/adapter.h"
#include "train/guard.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace sinter::bench {
namespace {

using autograd::Recompute;
using core::DType;

const core::Device kDevice{core::DeviceKind::cuda, 0};

struct TuneCase {
  const char* model;
  bool is_nf4;
  int64_t batch, at_once, sequence;  // at_once: sequences of a micro-batch
  Recompute recompute;
  int steps;  // after two that warm up
};

constexpr TuneCase kCases[] = {
    {"8B", false, 2, 2, 2048, Recompute::none, 6},      {"8B", false, 8, 2, 2048, Recompute::none, 4},
    {"8B", false, 8, 8, 2048, Recompute::selective, 4}, {"8B", false, 8, 8, 2048, Recompute::full, 4},
    {"8B", true, 1, 1, 2048, Recompute::full, 8},       {"8B", true, 2, 2, 2048, Recompute::full, 6},
    {"8B", true, 8, 2, 2048, Recompute::none, 4},       {"8B", true, 8, 8, 2048, Recompute::full, 4},
    {"70B", true, 1, 1, 2048, Recompute::full, 2}};

const char* name_of(Recompute mode) {
  return mode == Recompute::none ? "none" : mode == Recompute::selective ? "selective" : "full";
}

data::MicroBatch random_batch(const TuneCase& c, int64_t vocab, uint64_t index) {
  data::MicroBatch batch;
  const base::CounterRng rng{37, index};
  for (int64_t b = 0; b < c.at_once; ++b) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < c.sequence; ++t) {
      tokens.push_back(
          static_cast<int32_t>(rng.bits(static_cast<uint64_t>(b * c.sequence + t)) % static_cast<uint32_t>(vocab)));
    }
    batch.add_sequence(tokens);
  }
  batch.set_next_token_targets();
  batch.num_supervised = c.at_once * (c.sequence - 1);
  return batch;
}

struct TuneRate {
  double seconds = 0, loss = 0;
  size_t peak_bytes = 0, planned_bytes = 0;
};

std::set<std::string> linear_layers(const spec::ModelSpec& spec) {
  std::set<std::string> names;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    if (p.layer >= 0 && p.layer < spec.num_layers && p.shape.rank() == 2) names.insert(p.name);
  }
  return names;
}

TuneRate measure(const TuneCase& c) {
  core::DeviceRuntime& device = core::runtime(kDevice);
  core::Allocator& memory = device.allocator();
  const size_t before = memory.stats().current_bytes;
  const spec::ModelSpec spec = shape_of(c.model);
  const std::vector<spec::LocalParameter> table =
      spec::whole_table(spec::make_adapter_table(spec, {.rank = 16, .alpha = 32}));
  const std::set<std::string> apart = c.is_nf4 ? linear_layers(spec) : std::set<std::string>();
  const train::StepShape shape{.num_tokens = c.at_once * c.sequence,
                               .num_sequences = c.at_once,
                               .window = c.sequence,
                               .recompute = c.recompute,
                               .compute = DType::bf16,
                               .graphs = true};
  train::StepPlan plan = train::plan_step(spec, shape, table, nullptr, apart);
  models::ParameterStore store(table, {.device = kDevice, .compute = DType::bf16, .trains = true, .apart = apart});
  fill_random(store);
  if (c.is_nf4) use_packed(store, spec, {base::WeightFormat::nf4, 64});
  for (auto& slot : store.slots()) {
    if (slot.info.role == spec::ParameterRole::adapter) store.draw(slot, 1);
  }
  memory.reset_peak();  // from here on: the drawing of random weights takes f32 copies beside them
  models::Transformer transformer(spec, store);
  train::Optimizer optimizer({}, store);
  TuneRate rate;
  rate.planned_bytes = memory.stats().current_bytes - before + plan.arena_bytes();
  auto comm = comm::make_self();
  const parallel::Mesh mesh(*comm);
  train::StepRunner runner(transformer, shape, std::move(plan), mesh);
  const kernels::KernelTable& kernels = kernels::kernels_for(kDevice);
  train::DivergenceGuard guard({}, kDevice);
  const core::Tensor squares(memory, {1}, DType::f32), one = core::make_tensor<float>(memory, {1}, {1.0f});
  std::vector<double> times;
  constexpr int kWarmUp = 2;
  for (int step = 0; step < kWarmUp + c.steps; ++step) {
    std::vector<data::MicroBatch> batches;
    for (int64_t b = 0; b < c.batch; b += c.at_once)
      batches.push_back(random_batch(c, spec.vocab_size, static_cast<uint64_t>(step * c.batch + b)));
    const double begin = now_seconds();
    const train::StepCounts counts = runner.start(batches, step, one);
    kernels.fill(device.stream(), {squares, 0.0f});
    runner.sum_squares(squares);
    guard.decide(runner.record().slice(train::kSumLoss, 1), static_cast<double>(c.batch * c.sequence), squares,
                 runner.record());
    optimizer.update(guard.control(), 1.0);
    device.synchronize(device.stream());
    rate.loss = runner.read(counts, core::to_host<float>(runner.record()), 1.0).loss;
    times.push_back(now_seconds() - begin);
  }
  times.erase(times.begin(), times.begin() + kWarmUp);
  std::sort(times.begin(), times.end());
  rate.seconds = times[times.size() / 2];
  rate.peak_bytes = memory.stats().peak_bytes - before;
  return rate;
}

}  // namespace

Report bench_gpu_tune_step(const Options& options) {
  Report report{.name = "gpu_tune_step",
                .title = "adapters of rank 16 on all linear layers, random frozen weights, AdamW: whole steps",
                .columns = {{"case", "case"},
                            {"at_once", "at once"},
                            {"recompute", "recompute"},
                            {"ms", "ms/step", 1},
                            {"tokens_per_s", "tok/s", 0},
                            {"loss", "loss", 3},
                            {"planned_gib", "planned GiB", 2},
                            {"peak_gib", "peak GiB", 2},
                            {"problem", "problem"}},
                .rows = {}};
  if (!core::cuda_runtime(0)) return report;
  for (const TuneCase& c : kCases) {
    const std::string name = fmt::format("{} {} {} x {}", c.model, c.is_nf4 ? "QLoRA" : "LoRA", c.batch, c.sequence);
    if (name.find(options.only) == std::string::npos) continue;
    try {
      const TuneRate rate = measure(c);
      report.rows.push_back({name,
                             static_cast<double>(c.at_once),
                             name_of(c.recompute),
                             1e3 * rate.seconds,
                             static_cast<double>(c.batch * c.sequence) / rate.seconds,
                             rate.loss,
                             static_cast<double>(rate.planned_bytes) / (1 << 30),
                             static_cast<double>(rate.peak_bytes) / (1 << 30),
                             {}});
    } catch (const base::Error& e) {
      base::log_warning("{}: {}", name, e.what());
      report.rows.push_back(
          {name, static_cast<double>(c.at_once), name_of(c.recompute), {}, {}, {}, {}, {}, std::string(e.what())});
    }
    std::fputs((report.to_text() + "\n").c_str(), stderr);
  }
  return report;
}

}  // namespace sinter::bench
