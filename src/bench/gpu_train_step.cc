#include "bench/gpu_train_step.h"

#include <algorithm>

#include "base/rng.h"
#include "comm/communicator.h"
#include "kernels/fused.h"
#include "models/transformer.h"
#include "spec/parameters.h"
#include "train/guard.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace sinter::bench {
namespace {

using core::DType;
using core::Tensor;

data::MicroBatch random_batch(const TrainStepCase& c, uint64_t index) {
  data::MicroBatch batch;
  base::CounterRng rng{17, index};
  for (int64_t b = 0; b < c.batch; ++b) {
    std::vector<int32_t> tokens;
    for (int64_t t = 0; t < c.sequence; ++t) {
      tokens.push_back(static_cast<int32_t>(rng.bits(static_cast<uint64_t>(b * c.sequence + t)) %
                                            static_cast<uint32_t>(c.model.vocab_size)));
    }
    batch.add_sequence(tokens);
  }
  batch.set_next_token_targets();
  batch.num_supervised = c.batch * (c.sequence - 1);
  return batch;
}

// Seconds of one call, from many enqueued at once.
template <class Launch>
double seconds_of(core::DeviceRuntime& device, Launch launch) {
  constexpr int kCalls = 10;
  auto run = [&] {
    for (int i = 0; i < kCalls; ++i) launch();
    device.synchronize(device.stream());
  };
  return best_seconds(0.05, run) / kCalls;
}

// The median without the first steps, which choose algorithms and capture graphs.
constexpr int kWarmUpSteps = 3;
double settled_median(std::vector<double> times) {
  times.erase(times.begin(), times.begin() + kWarmUpSteps);
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

Tensor random_tensor(core::DeviceRuntime& device, core::Shape shape, DType dtype) {
  std::vector<float> values(static_cast<size_t>(std::min<int64_t>(shape.num_elements(), 1 << 20)));
  base::CounterRng rng{3, 4};
  for (size_t i = 0; i < values.size(); ++i) values[i] = rng.uniform(i) - 0.5f;
  std::vector<std::byte> raw(values.size() * base::dtype_bytes(dtype));
  base::convert_elements(DType::f32, values.data(), dtype, raw.data(), values.size());
  Tensor t(device.allocator(), shape, dtype);
  for (size_t begin = 0; begin < t.bytes(); begin += raw.size()) {
    device.copy_to_device(static_cast<char*>(t.raw()) + begin, raw.data(), std::min(raw.size(), t.bytes() - begin),
                          device.stream());
    device.synchronize(device.stream());
  }
  return t;
}

// Forward, input gradient and weight gradient of a linear layer, measured alone.
double linear_seconds(const TrainStepCase& c, int64_t M, int64_t N, int64_t K) {
  core::DeviceRuntime& device = core::runtime(c.device);
  const kernels::KernelTable& kernels = kernels::kernels_for(c.device);
  Tensor x = random_tensor(device, {M, K}, c.compute), w = random_tensor(device, {N, K}, c.compute),
         y = random_tensor(device, {M, N}, c.compute), dx(device.allocator(), {M, K}, c.compute),
         dw(device.allocator(), {N, K}, DType::f32);
  kernels.fill(device.stream(), {dw, 0.0f});
  core::Stream& stream = device.stream();
  return seconds_of(device, [&] { kernels.matmul(stream, {.a = x, .b = {.data = w}, .c = y, .transpose_b = true}); }) +
         seconds_of(device, [&] { kernels.matmul(stream, {.a = y, .b = {.data = w}, .c = dx}); }) +
         seconds_of(device, [&] {
           kernels.matmul(stream, {.a = y, .b = {.data = x}, .c = dw, .transpose_a = true, .accumulate = true});
         });
}

// The same in fp8: the products alone, with factors that are rounded already.
double fp8_linear_seconds(const TrainStepCase& c, int64_t M, int64_t N, int64_t K) {
  core::DeviceRuntime& device = core::runtime(c.device);
  const kernels::KernelTable& kernels = kernels::kernels_for(c.device);
  core::Stream& stream = device.stream();
  Tensor scale = core::make_tensor<float>(device.allocator(), {4}, {1, 1, 1, 1});
  auto seconds = [&](int64_t m, int64_t n, int64_t k, DType a_format, DType out, bool accumulate, bool fast) {
    Tensor a = random_tensor(device, {m, k}, a_format), b = random_tensor(device, {n, k}, DType::f8e4m3),
           y(device.allocator(), {m, n}, out);
    kernels.fill(stream, {y, 0.0f});
    return seconds_of(device, [&] {
      kernels.matmul(stream, {.a = a,
                              .b = {.data = b},
                              .c = y,
                              .transpose_b = true,
                              .accumulate = accumulate,
                              .a_scale = scale,
                              .b_scale = scale,
                              .fast_accumulation = fast});
    });
  };
  return seconds(M, N, K, DType::f8e4m3, c.compute, false, true) +
         seconds(M, K, N, DType::f8e5m2, c.compute, false, false) +
         seconds(N, K, M, DType::f8e5m2, DType::f32, true, false);
}

double attention_seconds(const TrainStepCase& c) {
  core::DeviceRuntime& device = core::runtime(c.device);
  const kernels::KernelTable& kernels = kernels::kernels_for(c.device);
  const spec::ModelSpec& s = c.model;
  const int64_t T = c.batch * c.sequence;
  core::RaggedBatch batch = core::upload(device.allocator(), random_batch(c, 0));
  kernels::AttentionShape shape{
      .num_heads = s.num_heads, .num_kv_heads = s.num_kv_heads, .head_dim = s.head_dim, .scale = s.scale_of(0)};
  Tensor qkv = random_tensor(device, {T, s.qkv_width()}, c.compute),
         dout = random_tensor(device, {T, s.q_width()}, c.compute),
         out(device.allocator(), {T, s.q_width()}, c.compute), lse(device.allocator(), {s.num_heads, T}, DType::f32),
         delta(device.allocator(), {s.num_heads, T}, DType::f32),
         dqkv(device.allocator(), {T, s.qkv_width()}, c.compute);
  core::Stream& stream = device.stream();
  return seconds_of(device,
                    [&] {
                      kernels.attention_forward(stream,
                                                {.shape = shape, .batch = &batch, .qkv = qkv, .out = out, .lse = lse});
                    }) +
         seconds_of(device, [&] {
           kernels.attention_backward(stream, {.shape = shape,
                                               .batch = &batch,
                                               .qkv = qkv,
                                               .out = out,
                                               .lse = lse,
                                               .dout = dout,
                                               .delta = delta,
                                               .dqkv = dqkv});
         });
}

// What the loss and its gradient over one chunk of rows take beyond the head's three products.
double loss_seconds(const TrainStepCase& c, int64_t rows, double products) {
  core::DeviceRuntime& device = core::runtime(c.device);
  const kernels::KernelTable& kernels = kernels::kernels_for(c.device);
  const int64_t V = c.model.vocab_size, C = c.model.hidden;
  Tensor x = random_tensor(device, {rows, C}, c.compute), weight = random_tensor(device, {V, C}, c.compute),
         logits(device.allocator(), {rows, V}, c.compute), dx(device.allocator(), {rows, C}, c.compute),
         dweight(device.allocator(), {V, C}, DType::f32), losses(device.allocator(), {rows}, DType::f32);
  kernels.fill(device.stream(), {dweight, 0.0f});
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(static_cast<int32_t>(r * 7919 % V));
  Tensor targets = core::make_tensor<int32_t>(device.allocator(), {rows}, ids);
  Tensor scale = core::make_tensor<float>(device.allocator(), {1}, {1e-6f});
  const double whole = seconds_of(device, [&] {
    kernels::linear_cross_entropy(kernels, device.stream(),
                                  {.x = x,
                                   .weight = {.data = weight},
                                   .targets = targets,
                                   .losses = losses,
                                   .scale = scale,
                                   .logits = logits,
                                   .dx = dx,
                                   .dweight = dweight,
                                   .accumulate = true});
  });
  return std::max(0.0, whole - products);
}

void measure_parts(const TrainStepCase& c, TrainStepRate& rate) {
  const spec::ModelSpec& s = c.model;
  const int64_t T = c.batch * c.sequence;
  const int64_t rows = spec::loss_chunk_rows(T, s.vocab_size, static_cast<int64_t>(base::dtype_bytes(c.compute)));
  const double passes = static_cast<double>(c.accumulation), layers = passes * static_cast<double>(s.num_layers),
               chunks = passes * static_cast<double>(T) / static_cast<double>(rows);
  auto linear = [&](int64_t N, int64_t K) {
    return c.fp8 ? fp8_linear_seconds(c, T, N, K) : linear_seconds(c, T, N, K);
  };
  double layer = linear(s.qkv_width(), s.hidden) + linear(s.hidden, s.q_width()) +
                 linear(s.gated_mlp ? 2 * s.ffn : s.ffn, s.hidden) + linear(s.hidden, s.ffn);
  const double head = linear_seconds(c, rows, s.vocab_size, s.hidden);
  rate.matmul_seconds = layers * layer + chunks * head;
  rate.attention_seconds = layers * attention_seconds(c);
  rate.loss_seconds = chunks * loss_seconds(c, rows, head);
}

spec::ModelSpec gpt2_spec(int64_t layers, int64_t hidden, int64_t heads) {
  spec::ModelSpec s;
  s.family = spec::Family::gpt2;
  s.vocab_size = 50304;
  s.hidden = hidden;
  s.num_layers = layers;
  s.num_heads = s.num_kv_heads = heads;
  s.head_dim = hidden / heads;
  s.ffn = 4 * hidden;
  s.max_positions = 1024;
  s.norm = spec::NormKind::layer;
  s.activation = spec::Activation::gelu_tanh;
  s.gated_mlp = false;
  s.learned_positions = s.tied_head = true;
  s.qkv_bias = s.out_bias = s.mlp_bias = true;
  return s;
}

spec::ModelSpec llama_1b_spec() {
  spec::ModelSpec s;
  s.vocab_size = 32768;
  s.hidden = 2048;
  s.num_layers = 16;
  s.num_heads = 32;
  s.num_kv_heads = 8;
  s.head_dim = 64;
  s.ffn = 8192;
  s.max_positions = 4096;
  s.tied_head = true;
  s.rope = {.kind = spec::RopeKind::standard, .theta = 500000.0};
  return s;
}

}  // namespace

TrainStepRate measure_train_step(const TrainStepCase& c, double seconds) {
  TrainStepRate rate;
  measure_parts(c, rate);
  core::DeviceRuntime& device = core::runtime(c.device);
  core::Allocator& memory = device.allocator();
  const size_t before = memory.stats().current_bytes;
  memory.reset_peak();
  train::StepShape shape{.num_tokens = c.batch * c.sequence,
                         .num_sequences = c.batch,
                         .window = c.sequence,
                         .max_micro_batches = c.accumulation,
                         .compute = c.compute,
                         .fp8 = c.fp8,
                         .graphs = c.graphs};
  train::StepPlan plan = train::plan_step(c.model, shape);
  models::ParameterStore store(c.model, {.device = c.device, .compute = c.compute, .trains = true});
  store.initialize(1);
  models::Transformer transformer(c.model, store);
  train::Optimizer optimizer({}, store);
  const size_t element_bytes = 4 + 4 + (c.compute == DType::f32 ? 0 : 2);
  rate.planned_bytes = static_cast<size_t>(store.num_elements()) * element_bytes + optimizer.state_bytes() +
                       plan.arena_bytes() + plan.fp8_bytes;
  auto comm = comm::make_self();
  const parallel::Mesh mesh(*comm);
  train::StepRunner runner(transformer, shape, std::move(plan), mesh);
  // Enough of them that none is learned by heart: data decide how much power products draw.
  constexpr int64_t kDistinctSteps = 12;
  std::vector<std::vector<data::MicroBatch>> batches(kDistinctSteps);
  for (int64_t i = 0; i < kDistinctSteps * c.accumulation; ++i) {
    batches[static_cast<size_t>(i % kDistinctSteps)].push_back(random_batch(c, static_cast<uint64_t>(i)));
  }
  const kernels::KernelTable& kernels = kernels::kernels_for(c.device);
  train::DivergenceGuard guard({}, c.device);
  Tensor squares(memory, {1}, DType::f32);
  auto update = [&] {
    kernels.fill(device.stream(), {squares, 0.0f});
    kernels.sum_squares(device.stream(), {.x = store.grad(), .total = squares});
    guard.decide(runner.record().slice(train::kSumLoss, 1), static_cast<double>(c.batch * c.sequence * c.accumulation),
                 squares, runner.record());
    optimizer.update(guard.control(), 1.0);
    device.synchronize(device.stream());
  };
  const Tensor loss_scale = core::make_tensor<float>(memory, {1}, {1.0f});
  int64_t step = 0;
  std::vector<double> times, enqueue_times;
  for (double begin = now_seconds(); times.size() < kWarmUpSteps + 8 || now_seconds() - begin < seconds;) {
    const double start = now_seconds();
    const train::StepCounts counts =
        runner.start(batches[static_cast<size_t>(step % kDistinctSteps)], step, loss_scale);
    ++step;
    enqueue_times.push_back(now_seconds() - start);
    rate.loss = runner.read(counts, core::to_host<float>(runner.record()), 1.0).loss;
    update();
    times.push_back(now_seconds() - start);
  }
  rate.step_seconds = settled_median(std::move(times));
  rate.enqueue_seconds = settled_median(std::move(enqueue_times));
  spec::ParameterCounts counts = spec::count_parameters(c.model);
  const double flops = 6.0 * static_cast<double>(counts.active - counts.position) +
                       6.0 * static_cast<double>(c.model.num_layers * c.sequence * c.model.q_width());
  rate.tokens_per_second = static_cast<double>(c.batch * c.sequence * c.accumulation) / rate.step_seconds;
  rate.flops_per_second = flops * rate.tokens_per_second;
  rate.peak_bytes = memory.stats().peak_bytes - before;
  rate.optimizer_seconds = best_seconds(0.05, update);
  return rate;
}

Report bench_gpu_train_step(const Options& options) {
  Report report{.name = "gpu_train_step",
                .title =
                    "training step on the GPU (clip and AdamW included); FLOPs per token 6N + 6LTC; the share is of "
                    "the step's own products and attention alone",
                .columns = {{"case", "case"},
                            {"precision", "precision"},
                            {"graphs", "graphs"},
                            {"ms", "ms/step", 2},
                            {"enqueue_ms", "enqueue ms", 2},
                            {"tokens_per_s", "tok/s", 0},
                            {"tflops", "TFLOP/s", 1},
                            {"share", "% of parts", 1},
                            {"loss", "loss", 3},
                            {"planned_gib", "planned GiB", 2},
                            {"peak_gib", "peak GiB", 2}},
                .rows = {}};
  if (!core::cuda_runtime(0)) return report;
  const core::Device gpu{core::DeviceKind::cuda, 0};
  for (TrainStepCase c :
       {TrainStepCase{"GPT-2 124M, 8 x 64 x 1024", gpt2_spec(12, 768, 12), 64, 1024, 8, gpu, DType::bf16},
        TrainStepCase{"GPT-2 1.5B, 4 x 16 x 1024", gpt2_spec(48, 1600, 25), 16, 1024, 4, gpu, DType::bf16},
        TrainStepCase{"Llama 1B, 2 x 8 x 4096", llama_1b_spec(), 8, 4096, 2, gpu, DType::bf16},
        TrainStepCase{"GPT-2 small, 1 x 4 x 256", gpt2_spec(12, 768, 12), 4, 256, 1, gpu, DType::bf16, false, true}}) {
    if (c.name.find(options.only) == std::string::npos) continue;
    std::vector<std::string> graphs = options.graphs;
    if (graphs.empty()) graphs = c.is_small ? std::vector<std::string>{"off", "on"} : std::vector<std::string>{"on"};
    for (const std::string& precision : options.precisions) {
      c.fp8 = precision == "fp8";
      for (const std::string& on : graphs) {
        c.graphs = on == "on";
        TrainStepRate rate = measure_train_step(c, std::max(options.case_seconds, c.is_small ? 1.0 : 4.0));
        report.rows.push_back({c.name, precision, on, rate.step_seconds * 1e3, rate.enqueue_seconds * 1e3,
                               rate.tokens_per_second, rate.flops_per_second / 1e12,
                               100 * rate.parts_seconds() / rate.step_seconds, rate.loss,
                               double(rate.planned_bytes) / (1 << 30), double(rate.peak_bytes) / (1 << 30)});
      }
    }
  }
  return report;
}

}  // namespace sinter::bench
