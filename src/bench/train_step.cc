#include "bench/train_step.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <memory>

#include "base/error.h"
#include "base/rng.h"
#include "base/threads.h"
#include "bench/ceilings.h"
#include "bench/timed_kernels.h"
#include "core/arena.h"
#include "core/host_batch.h"
#include "models/transformer.h"
#include "plan/models.h"

namespace sinter::bench {
namespace {

using base::DType;
using core::Tensor;

constexpr int64_t kSequences = 4;

core::HostBatch random_batch(int64_t sequences, int64_t length, int64_t vocab) {
  core::HostBatch batch;
  base::CounterRng rng{1, 2};
  for (int64_t s = 0; s < sequences; ++s) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < length; ++t) {
      uint64_t draw = rng.bits(static_cast<uint64_t>(s * length + t));
      tokens.push_back(static_cast<int32_t>(draw % static_cast<uint64_t>(vocab)));
    }
    batch.add_sequence(tokens);
  }
  batch.set_next_token_targets();
  return batch;
}

// Weights, optimizer state and planned activations of a run, as a trainer holds them.
class StepRunner {
 public:
  StepRunner(const spec::ModelSpec& spec, DType compute, int64_t sequences, int64_t length)
      : device_(core::runtime({})),
        host_(random_batch(sequences, length, spec.vocab_size)),
        store_(spec, {.compute = compute, .trains = true}),
        model_(spec, store_),
        arena_(device_.allocator(), plan(spec, compute)) {
    store_.initialize(1);
    for (Tensor* t : {&m_, &v_}) *t = Tensor(device_.allocator(), {store_.num_elements()}, DType::f32);
    squares_ = Tensor(device_.allocator(), {1}, DType::f32);
    loss_sum_ = Tensor(device_.allocator(), {1}, DType::f32);
    control_ = Tensor(device_.allocator(), {kernels::kControlSize}, DType::f32);
    record_ = Tensor(device_.allocator(), {kernels::kRecordSize}, DType::f32);
    state_ = Tensor(device_.allocator(), {kernels::step_state_size(rule_.window)}, DType::f32);
    for (const Tensor& t : {m_, v_, loss_sum_, state_}) timed_kernels().fill(device_.stream(), {t, 0.0f});
    timed_kernels().fill(device_.stream(), {state_.slice(kernels::kStateScale, 1), 1.0f});
  }

  int64_t num_tokens() const { return static_cast<int64_t>(host_.tokens.size()); }

  void step() {
    const kernels::KernelTable& kernels = timed_kernels();
    core::Stream& stream = device_.stream();
    arena_.begin_step();
    store_.begin_step();
    loss_and_gradients({}, arena_, kernels, model_);
    store_.sum_gradient_squares(kernels, stream, squares_);
    kernels.step_control(stream, {.rule = rule_,
                                  .loss_sum = loss_sum_,
                                  .norm_squared = squares_,
                                  .state = state_,
                                  .control = control_,
                                  .record = record_});
    ++num_steps_;
    for (const auto& range : store_.ranges()) update(range.begin, range.end, range.decays ? 0.1f : 0.0f);
    store_.bump_versions();
  }

 private:
  core::MemoryPlan plan(const spec::ModelSpec& spec, DType compute) {
    const core::Device shapes{core::DeviceKind::shapes, 0};
    models::ParameterStore outline(spec, {.device = shapes, .compute = compute, .trains = true});
    models::Transformer model(spec, outline);
    core::RecordingAllocator recorder;
    loss_and_gradients(shapes, recorder, kernels::kernels_for(shapes), model);
    return core::plan_memory(recorder.trace());
  }

  void loss_and_gradients(core::Device device, core::Allocator& memory, const kernels::KernelTable& kernels,
                          models::Transformer& model) {
    core::DeviceRuntime& runtime = core::runtime(device);
    core::RaggedBatch batch = core::upload(runtime.allocator(), host_);
    models::LossPlaces places;
    places.scale = core::make_tensor<float>(runtime.allocator(), {1}, {1.0f / static_cast<float>(num_tokens())});
    places.losses = Tensor(runtime.allocator(), {num_tokens()}, DType::f32);
    autograd::Tape tape(autograd::Recompute::none);
    model.loss({kernels, runtime.stream(), memory, &tape}, batch, {}, places);
    tape.backward();
  }

  void update(int64_t begin, int64_t end, float decay) {
    const int64_t n = end - begin;
    bool rounds = store_.options().compute != DType::f32;
    timed_kernels().adamw(device_.stream(), {.master = store_.master().slice(begin, n),
                                             .grad = store_.grad().slice(begin, n),
                                             .m = m_.slice(begin, n),
                                             .v = v_.slice(begin, n),
                                             .copy = rounds ? store_.compute().slice(begin, n) : Tensor(),
                                             .control = control_,
                                             .lr = 1e-4f,
                                             .weight_decay = decay,
                                             .step = num_steps_});
  }

  core::DeviceRuntime& device_;
  core::HostBatch host_;
  models::ParameterStore store_;
  models::Transformer model_;
  core::PlannedArena arena_;
  const kernels::StepRule rule_{.max_norm = 1.0f};
  Tensor m_, v_, squares_;
  Tensor loss_sum_;  // (1) f32: any finite number
  Tensor state_, control_, record_;
  int64_t num_steps_ = 0;
};

// Seconds spent in kernels whose name begins so.
double seconds_in(const std::vector<KernelClock>& times, std::initializer_list<const char*> beginnings) {
  double sum = 0;
  for (const KernelClock& time : times) {
    for (const char* beginning : beginnings) {
      if (time.name.rfind(beginning, 0) == 0) sum += time.seconds;
    }
  }
  return sum;
}

StepSample make_sample(const std::vector<KernelCall>& calls, double tokens, double seconds) {
  std::vector<KernelClock> times = kernel_times(calls);
  StepSample s;
  s.tokens = tokens;
  s.seconds = seconds;
  s.matmul = seconds_in(times, {"matmul"});
  s.attention = seconds_in(times, {"attention"});
  s.loss = seconds_in(times, {"cross_entropy"});
  s.optimizer = seconds_in(times, {"adamw", "sum_squares"});
  return s;
}

spec::ModelSpec benchmark_model() {
  spec::ModelSpec spec = plan::resolve_model("gpt2").spec;
  spec.vocab_size = 50304;  // rows of logits on cache lines, as on the GPU and as its peers pad it
  spec.dropout = {};
  return spec;
}

std::vector<Cell> measure(const spec::ModelSpec& spec, DType dtype, int64_t length, const Ceilings& ceilings,
                          const Options& options) {
  const StepSamples samples = sample_train_step(spec, dtype, kSequences, length, 8 * options.case_seconds);
  const StepSample& s = samples.best;
  double parameters = static_cast<double>(spec::count_parameters(spec).total);
  double flops_per_token = 6 * parameters + 6 * static_cast<double>(spec.num_layers * length * spec.hidden);
  double rate = flops_per_token * s.tokens / s.seconds;
  auto percent = [&](double seconds) { return 100 * seconds / s.seconds; };
  return {std::string(base::dtype_name(dtype)),
          static_cast<double>(kSequences),
          static_cast<double>(length),
          1e3 * s.seconds,
          1e3 * samples.mean_seconds,
          s.tokens / s.seconds,
          rate / 1e9,
          100 * rate / (dtype == DType::f32 ? ceilings.fp32_flops : ceilings.bf16_flops),
          percent(s.matmul),
          percent(s.attention),
          percent(s.loss),
          percent(s.optimizer),
          percent(s.other())};
}

}  // namespace

StepSamples sample_train_step(const spec::ModelSpec& spec, DType dtype, int64_t sequences, int64_t length,
                              double seconds, int least) {
  StepRunner runner(spec, dtype, sequences, length);
  runner.step();
  std::vector<KernelCall> best_step, best_calls;
  double best_seconds = 1e300, best_rest = 1e300, begin = now_seconds(), sum_seconds = 0;
  int steps = 0;
  for (; steps < least || now_seconds() - begin < seconds; ++steps) {
    reset_kernel_times();
    double start = now_seconds();
    runner.step();
    double taken = now_seconds() - start, rest = taken;
    const std::vector<KernelCall>& calls = kernel_calls();
    if (best_calls.empty()) best_calls = calls;
    for (size_t c = 0; c < calls.size(); ++c) {
      best_calls[c].seconds = std::min(best_calls[c].seconds, calls[c].seconds);
      rest -= calls[c].seconds;
    }
    best_rest = std::min(best_rest, rest);
    sum_seconds += taken;
    if (taken >= best_seconds) continue;
    best_seconds = taken;
    best_step = calls;
  }
  const double tokens = static_cast<double>(runner.num_tokens());
  double undisturbed = best_rest;
  for (const KernelCall& call : best_calls) undisturbed += call.seconds;
  return {make_sample(best_step, tokens, best_seconds), make_sample(best_calls, tokens, undisturbed),
          sum_seconds / steps};
}

void train_steps_in_turns(const std::string& format_and_length) {
  const size_t x = format_and_length.find('x');
  const std::string format = format_and_length.substr(0, x);
  int64_t length = 0;
  if (x != std::string::npos) {
    const char *begin = format_and_length.data() + x + 1, *end = format_and_length.data() + format_and_length.size();
    if (std::from_chars(begin, end, length).ptr != end) length = 0;
  }
  if ((format != "fp32" && format != "bf16") || length < 1 || length > 1024) {
    throw base::UsageError(
        fmt::format("--turns is '{}'; expected fp32 or bf16, an x and a length of 1 to 1024, as in "
                    "bf16x1024",
                    format_and_length));
  }
  StepRunner runner(benchmark_model(), format == "fp32" ? DType::f32 : DType::bf16, kSequences, length);
  runner.step();
  fmt::print("ready\n");
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    reset_kernel_times();
    const double start = now_seconds();
    runner.step();
    fmt::print("{:.1f}\n", 1e3 * (now_seconds() - start));
    std::fflush(stdout);
  }
}

Report bench_train_step(const Options& options) {
  Ceilings ceilings = measure_ceilings();
  const spec::ModelSpec spec = benchmark_model();
  Report report;
  report.name = "train_step";
  report.title = fmt::format("Training step of GPT-2 124M (AdamW, clipping), {} threads; FLOPs 6 N + 6 L T C per token",
                             base::num_threads());
  report.columns = {{"format", "format"},
                    {"b", "B", 0},
                    {"t", "T", 0},
                    {"ms", "ms/step", 0},
                    {"mean_ms", "mean", 0},
                    {"tokens_per_s", "tokens/s"},
                    {"gflops", "GFLOP/s"},
                    {"share", "% of ceiling", 0},
                    {"matmul", "% matmul", 0},
                    {"attention", "attention", 0},
                    {"loss", "loss", 0},
                    {"optimizer", "optimizer", 0},
                    {"other", "other", 0}};
  for (int64_t length : {64, 1024}) {
    if (length > 64 && !options.is_full) break;
    for (DType dtype : {DType::f32, DType::bf16})
      report.rows.push_back(measure(spec, dtype, length, ceilings, options));
  }
  return report;
}

}  // namespace sinter::bench
