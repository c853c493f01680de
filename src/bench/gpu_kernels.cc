#include "bench/gpu_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/log.h"
#include "base/rng.h"
#include "base/text.h"
#include "bench/device_bench.h"
#include "kernels/fused.h"

namespace sinter::bench {
namespace {

using base::DType;
using core::Tensor;

// The kernels asked for, timed as they are added.
class Bench : public DeviceBench {
 public:
  Bench(core::Device device, const TrainingShape& shape, std::string only)
      : DeviceBench(device), shape_(shape), only_(std::move(only)) {}

  void add(const std::string& kernel, const std::string& shape, double per_step, double flops, double bytes,
           const std::function<void()>& call) {
    if ((shape_.name + " " + kernel).find(only_) == std::string::npos) return;
    KernelTime timed{shape_.name, kernel, shape, 0, flops, bytes, per_step};
    try {
      timed.seconds = time(call);
    } catch (const std::exception& e) {
      base::log_warning("{}, {} {} failed: {}", shape_.name, kernel, shape, e.what());
    }
    times.push_back(std::move(timed));
  }

  std::vector<KernelTime> times;

 private:
  const TrainingShape& shape_;
  const std::string only_;
};

// What of a linear layer's activation is done inside its products. Gated ones are timed by add_gated, and the plain
// product does not count in the pass then.
enum class Fused { none, forward, input_gradient, gated_forward, gated_input_gradient };

// Forward, input gradient and weight gradient of one linear layer of N outputs and K inputs over M rows.
void add_linear(Bench& b, const char* name, int64_t m, int64_t n, int64_t k, double per_step, bool bias,
                Fused fused = Fused::none) {
  Tensor x = b.values({m, k}, DType::bf16), w = b.values({n, k}, DType::bf16, 0.02f), y = b.values({m, n}, DType::bf16);
  Tensor dw = b.values({n, k}, DType::f32), vector = b.values({n}, DType::bf16);
  double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  double bytes = 2.0 * static_cast<double>(m * k + n * k + m * n);
  std::string shape = fmt::format("{}x{}x{}", m, n, k);
  Tensor other;
  if (fused == Fused::forward) other = b.values({m, n}, DType::bf16);
  if (fused == Fused::input_gradient) other = b.values({m, k}, DType::bf16);
  kernels::MatmulArgs forward;
  forward.a = x, forward.b.data = w, forward.c = y, forward.transpose_b = true;
  if (bias) forward.bias = vector;
  b.add(std::string(name) + (fused == Fused::forward ? " forward + gelu" : " forward"), shape,
        fused == Fused::gated_forward ? 0 : per_step, flops, bytes, [&] {
          kernels::FusedMatmulArgs args{.product = forward};
          if (fused == Fused::forward) args.slope = other;
          kernels::fused_matmul(b.table(), b.stream(), args);
        });
  kernels::MatmulArgs input;
  input.a = y, input.b.data = w, input.c = x;
  b.add(std::string(name) + (fused == Fused::input_gradient ? " dx * gelu'" : " dx"), shape,
        fused == Fused::gated_input_gradient ? 0 : per_step, flops, bytes, [&] {
          kernels::FusedMatmulArgs args{.product = input};
          if (fused == Fused::input_gradient) args.slope_input = other;
          kernels::fused_matmul(b.table(), b.stream(), args);
        });
  kernels::MatmulArgs weight;
  weight.a = y, weight.b.data = x, weight.c = dw, weight.transpose_a = true, weight.accumulate = true;
  Tensor db = bias ? b.values({n}, DType::f32) : Tensor();
  b.add(std::string(name) + (bias ? " dw (+= f32) + dbias" : " dw (+= f32)"), shape, per_step, flops, bytes, [&] {
    kernels::fused_matmul(b.table(), b.stream(), {.product = weight, .a_sums = db, .accumulate_sums = true});
  });
}

// The products of a linear layer in fp8, and the rounding of its input and its output's gradient. None of it counts in
// the pass, which is in bf16.
void add_fp8_linear(Bench& b, const std::string& name, int64_t m, int64_t n, int64_t k) {
  Tensor scale = core::make_tensor<float>(core::runtime(b.stream().device).allocator(), {4}, {1, 1, 1, 1});
  double flops = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  auto product = [&](const char* what, int64_t rows, int64_t columns, int64_t inner, DType format, DType out,
                     bool fast) {
    Tensor x = b.values({rows, inner}, format), w = b.values({columns, inner}, DType::f8e4m3),
           y = b.values({rows, columns}, out);
    kernels::MatmulArgs args;
    args.a = x, args.b.data = w, args.c = y, args.transpose_b = true, args.a_scale = args.b_scale = scale;
    args.fast_accumulation = fast, args.accumulate = out == DType::f32;
    b.add(name + what, fmt::format("{}x{}x{}", m, n, k), 0, flops, 0, [&] { b.table().matmul(b.stream(), args); });
  };
  product(" fp8 forward", m, n, k, DType::f8e4m3, DType::bf16, true);
  product(" fp8 dx", m, k, n, DType::f8e5m2, DType::bf16, false);
  product(" fp8 dx (fast sums)", m, k, n, DType::f8e5m2, DType::bf16, true);
  product(" fp8 dw (+= f32)", n, k, m, DType::f8e5m2, DType::f32, false);
  product(" fp8 dw (fast sums)", n, k, m, DType::f8e5m2, DType::f32, true);
}

void add_fp8(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens(), width = (s.heads + 2 * s.kv_heads) * s.head_dim(), up = s.is_llama ? 2 * s.ffn : s.ffn;
  add_fp8_linear(b, "qkv", tokens, width, s.channels);
  add_fp8_linear(b, "attention out", tokens, s.channels, s.channels);
  add_fp8_linear(b, "mlp up", tokens, up, s.channels);
  add_fp8_linear(b, "mlp down", tokens, s.channels, s.ffn);
  core::Allocator& memory = core::runtime(b.stream().device).allocator();
  Tensor scaling = core::make_tensor<float>(memory, {kernels::Fp8Scaling::kSize},
                                            std::vector<float>(kernels::Fp8Scaling::kSize, 1.0f));
  auto output = [&](int64_t columns, DType format) {
    return kernels::Fp8Output{scaling, Tensor(memory, {tokens, columns}, format),
                              Tensor(memory, {columns, tokens}, format)};
  };
  for (int64_t columns : {s.channels, s.ffn}) {
    kernels::Fp8QuantizeArgs args{b.values({tokens, columns}, DType::bf16), output(columns, DType::f8e4m3)};
    b.add("fp8 rounding, both orders", fmt::format("({}, {})", tokens, columns), 0, 0,
          4.0 * static_cast<double>(tokens * columns), [&] { b.table().fp8_quantize(b.stream(), args); });
  }
  if (!s.is_llama) return;
  Tensor x = b.values({tokens, 2 * s.ffn}, DType::bf16);
  double one = static_cast<double>(tokens * s.ffn);
  {
    kernels::Fp8SwigluForwardArgs args{x, output(s.ffn, DType::f8e4m3)};
    b.add("fp8 swiglu forward", fmt::format("({}, {})", tokens, s.ffn), 0, 0, 6 * one,
          [&] { b.table().fp8_swiglu_forward(b.stream(), args); });
  }
  kernels::Fp8SwigluBackwardArgs args{b.values({tokens, s.ffn}, DType::bf16), x, output(2 * s.ffn, DType::f8e5m2)};
  b.add("fp8 swiglu backward", fmt::format("({}, {})", tokens, s.ffn), 0, 0, 10 * one,
        [&] { b.table().fp8_swiglu_backward(b.stream(), args); });
}

// Sequences laid end to end.
struct Sequences {
  std::vector<int32_t> offsets = {0};
  double pairs = 0;  // of a token and one it sees, half a square each

  void add(int64_t length) {
    offsets.push_back(offsets.back() + static_cast<int32_t>(length));
    pairs += 0.5 * static_cast<double>(length) * static_cast<double>(length);
  }
};

// Documents of exponentially distributed length, cut where windows end as data.packing = "documents" does.
Sequences make_documents(const TrainingShape& s, double mean) {
  Sequences result;
  base::CounterRng rng{11, 0};
  int64_t left = 0;
  uint64_t document = 0;
  for (int64_t window = 0; window < s.sequences; ++window) {
    for (int64_t room = s.length; room > 0;) {
      if (left == 0) left = 1 + static_cast<int64_t>(-mean * std::log(1.0 - rng.uniform(document++)));
      const int64_t length = std::min(left, room);
      result.add(length);
      left -= length, room -= length;
    }
  }
  return result;
}

enum class AttentionWay { equal_lengths, documents, unknown };  // what the host knows of the batch

// Forward and backward over some sequences, `layers` times a step.
void add_attention_over(Bench& b, const TrainingShape& s, const Sequences& sequences, AttentionWay way,
                        const std::string& what, double layers) {
  int64_t tokens = s.tokens(), dim = s.head_dim(), width = (s.heads + 2 * s.kv_heads) * dim;
  const auto count = static_cast<int64_t>(sequences.offsets.size()) - 1;
  Tensor qkv = b.values({tokens, width}, DType::bf16), out = b.values({tokens, s.channels}, DType::bf16);
  Tensor lse = b.values({s.heads, tokens}, DType::f32), delta = b.values({s.heads, tokens}, DType::f32);
  Tensor dout = b.values({tokens, s.channels}, DType::bf16), dqkv = b.values({tokens, width}, DType::bf16);
  auto offset = [&](int64_t i) { return sequences.offsets[static_cast<size_t>(i)]; };
  core::RaggedBatch batch;
  batch.offsets = b.integers(count + 1, offset);
  batch.contexts = b.integers(count, [&](int64_t i) { return offset(i + 1) - offset(i); });
  batch.num_tokens = tokens, batch.num_sequences = count, batch.max_query = batch.max_context = s.length;
  batch.equal_lengths = way == AttentionWay::equal_lengths;
  if (way == AttentionWay::documents) batch.filled_sequences = core::coarse_bound(count);
  kernels::AttentionShape shape;
  shape.num_heads = s.heads, shape.num_kv_heads = s.kv_heads, shape.head_dim = dim;
  shape.scale = 1.0f / std::sqrt(static_cast<float>(dim));
  double flops = 4.0 * sequences.pairs * static_cast<double>(s.heads * dim);
  std::string text = fmt::format("{} in {} H {}/{} D {}", tokens, count, s.heads, s.kv_heads, dim);
  kernels::AttentionForwardArgs forward;
  forward.shape = shape, forward.batch = &batch, forward.qkv = qkv, forward.out = out, forward.lse = lse;
  b.add("attention forward" + what, text, layers, flops, 0, [&] { b.table().attention_forward(b.stream(), forward); });
  kernels::AttentionBackwardArgs backward;
  backward.shape = shape, backward.batch = &batch, backward.qkv = qkv, backward.out = out, backward.lse = lse;
  backward.dout = dout, backward.delta = delta, backward.dqkv = dqkv;
  const Tensor cos_sin = s.is_llama ? b.values({tokens, dim}, DType::f32) : Tensor();
  b.add("attention backward" + what, text, layers, 2.5 * flops, 0, [&] {
    kernels::rotated_attention_backward(b.table(), b.stream(), {backward, cos_sin});
  });
}

// Equal lengths and documents may take kernels for them; a batch of which the host knows nothing takes those for all.
void add_attention(Bench& b, const TrainingShape& s) {
  Sequences equal;
  for (int64_t i = 0; i < s.sequences; ++i) equal.add(s.length);
  add_attention_over(b, s, equal, AttentionWay::equal_lengths, "", static_cast<double>(s.layers));
  add_attention_over(b, s, equal, AttentionWay::unknown, ", any batch", 0);
  for (int mean : {1000, 300, 100, 50}) {
    const Sequences documents = make_documents(s, mean);
    const std::string what = fmt::format(" (~{})", mean);
    add_attention_over(b, s, documents, AttentionWay::documents, what, 0);
    add_attention_over(b, s, documents, AttentionWay::unknown, what + ", any batch", 0);
  }
}

void add_norm(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens(), c = s.channels;
  double one = 2.0 * static_cast<double>(tokens * c), per_step = 2.0 * static_cast<double>(s.layers) + 1;
  std::string shape = fmt::format("({}, {})", tokens, c);
  Tensor x = b.values({tokens, c}, DType::bf16), residual = b.values({tokens, c}, DType::bf16);
  Tensor sum = b.values({tokens, c}, DType::bf16), y = b.values({tokens, c}, DType::bf16);
  Tensor weight = b.values({c}, DType::f32), bias = s.is_llama ? Tensor() : b.values({c}, DType::f32);
  Tensor mean = s.is_llama ? Tensor() : b.values({tokens}, DType::f32), rstd = b.values({tokens}, DType::f32);
  auto kind = s.is_llama ? spec::NormKind::rms : spec::NormKind::layer;
  kernels::NormForwardArgs forward{kind, 1e-5f, x, residual, weight, bias, sum, y, mean, rstd};
  b.add("residual + norm forward", shape, per_step, 0, 4 * one, [&] { b.table().norm_forward(b.stream(), forward); });
  Tensor dweight = b.values({c}, DType::f32), dbias = s.is_llama ? Tensor() : b.values({c}, DType::f32);
  kernels::NormBackwardArgs backward{kind, y, x, sum, weight, mean, rstd, residual, dweight, dbias};
  b.add("residual + norm backward", shape, per_step, 0, 4 * one,
        [&] { b.table().norm_backward(b.stream(), backward); });
}

// The products around a gated activation, with it.
void add_gated(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens();
  Tensor x = b.values({tokens, s.channels}, DType::bf16), w = b.values({2 * s.ffn, s.channels}, DType::bf16, 0.02f);
  Tensor gate_up = b.values({tokens, 2 * s.ffn}, DType::bf16), h = b.values({tokens, s.ffn}, DType::bf16);
  double flops = 4.0 * static_cast<double>(tokens * s.ffn) * static_cast<double>(s.channels);
  double per_step = static_cast<double>(s.layers);
  kernels::FusedMatmulArgs forward{.activation = spec::Activation::silu, .pre_activation = gate_up, .gated = true};
  forward.product.a = x, forward.product.b.data = w, forward.product.c = h, forward.product.transpose_b = true;
  b.add("mlp up forward + swiglu", fmt::format("{}x{}x{}", tokens, 2 * s.ffn, s.channels), per_step, flops, 0,
        [&] { kernels::fused_matmul(b.table(), b.stream(), forward); });
  Tensor down = b.values({s.channels, s.ffn}, DType::bf16, 0.02f);
  Tensor gradient = b.values({tokens, 2 * s.ffn}, DType::bf16);
  kernels::FusedMatmulArgs backward{
      .activation = spec::Activation::silu, .activation_input = gate_up, .gated = true, .gate_up_gradient = gradient};
  backward.product.a = x, backward.product.b.data = down, backward.product.c = h;
  b.add("mlp down dx * swiglu'", fmt::format("{}x{}x{}", tokens, s.channels, s.ffn), per_step, flops / 2, 0,
        [&] { kernels::fused_matmul(b.table(), b.stream(), backward); });
}

void add_activation(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens(), width = s.is_llama ? 2 * s.ffn : s.ffn;
  auto kind = s.is_llama ? spec::Activation::silu : spec::Activation::gelu_tanh;
  Tensor x = b.values({tokens, width}, DType::bf16), y = b.values({tokens, s.ffn}, DType::bf16);
  double in = 2.0 * static_cast<double>(tokens * width), out = 2.0 * static_cast<double>(tokens * s.ffn);
  std::string shape = fmt::format("({}, {}){}", tokens, s.ffn, s.is_llama ? " gated" : "");
  kernels::ActivationForwardArgs forward{kind, s.is_llama, x, y};
  // They do not count in the pass: they are done inside the products, or timed with them.
  b.add("activation forward", shape, 0, 0, in + out, [&] { b.table().activation_forward(b.stream(), forward); });
  Tensor dx = b.values({tokens, width}, DType::bf16);
  kernels::ActivationBackwardArgs backward{kind, s.is_llama, y, x, dx};
  b.add("activation backward", shape, 0, 0, 2 * in + out, [&] { b.table().activation_backward(b.stream(), backward); });
}

void add_rope(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens(), dim = s.head_dim(), rotated = s.heads + s.kv_heads;
  Tensor qkv = b.values({tokens, (rotated + s.kv_heads) * dim}, DType::bf16),
         cos_sin = b.values({tokens, dim}, DType::f32);
  kernels::RopeArgs rope{rotated, dim, qkv, cos_sin, false};
  // Not in the sum of a pass: where our products and attention for Hopper are taken they rotate by themselves.
  b.add("rope", fmt::format("T {} heads {} D {}", tokens, rotated, dim), 0, 0,
        4.0 * static_cast<double>(tokens * rotated * dim) + 4.0 * static_cast<double>(tokens * dim),
        [&] { b.table().rope(b.stream(), rope); });
}

void add_ends(Bench& b, const TrainingShape& s) {
  int64_t tokens = s.tokens(), rows = tokens / 4;
  add_linear(b, "head", rows, s.vocab, s.channels, 4, false);
  {
    Tensor logits = b.values({rows, s.vocab}, DType::bf16), losses = b.values({rows}, DType::f32),
           scale = b.values({1}, DType::f32);
    Tensor targets = b.integers(rows, [&](int64_t i) { return static_cast<int32_t>(i * 7919 % s.vocab); });
    kernels::CrossEntropyArgs args{logits, targets, losses, scale, true};
    b.add("cross entropy + gradient", fmt::format("({}, {})", rows, s.vocab), 4, 0,
          4.0 * static_cast<double>(rows) * static_cast<double>(s.vocab),
          [&] { b.table().cross_entropy(b.stream(), args); });
  }
  {
    Tensor table = b.values({s.vocab, s.channels}, DType::bf16), y = b.values({tokens, s.channels}, DType::bf16);
    Tensor dtable = b.values({s.vocab, s.channels}, DType::f32);
    // Zipf-like tokens: a few very frequent ones.
    Tensor ids = b.integers(tokens, [&](int64_t i) {
      double u = static_cast<double>((i * 2654435761u) & 0xffffff) / 16777216.0;
      return static_cast<int32_t>(
          std::min<double>(static_cast<double>(s.vocab) - 1, std::pow(static_cast<double>(s.vocab), u) - 1));
    });
    Tensor positions = b.integers(tokens, [&](int64_t i) { return static_cast<int32_t>(i % s.length); });
    double bytes = 4.0 * static_cast<double>(tokens * s.channels);
    kernels::EmbeddingForwardArgs forward{ids, positions, table, {}, y};
    b.add("embedding forward", fmt::format("({}, {})", tokens, s.channels), 1, 0, bytes,
          [&] { b.table().embedding_forward(b.stream(), forward); });
    kernels::EmbeddingBackwardArgs backward{ids, positions, y, dtable, {}};
    b.add("embedding backward", fmt::format("({}, {})", tokens, s.channels), 1, 0, bytes / 2,
          [&] { b.table().embedding_backward(b.stream(), backward); });
  }
}

void add_optimizer(Bench& b, const TrainingShape& s) {
  int64_t n = s.num_parameters() / 4 * 4;
  Tensor master = b.values({n}, DType::f32), grad = b.values({n}, DType::f32), copy = b.values({n}, DType::bf16);
  Tensor control = core::make_tensor<float>(core::runtime(b.stream().device).allocator(), {2}, {1.0f, 1.0f});
  Tensor total = b.values({1}, DType::f32);
  for (DType state : {DType::f32, DType::bf16}) {
    Tensor m = b.values({n}, state, 0.01f), v = b.values({n}, state, 0.01f);
    kernels::AdamwArgs args;
    args.master = master, args.grad = grad, args.m = m, args.v = v, args.copy = copy, args.control = control;
    args.lr = 1e-6f;
    double bytes = static_cast<double>(n) * (4 + 4 + 4 + 2 + 4 * static_cast<double>(base::dtype_bytes(state)));
    b.add(fmt::format("adamw ({} states)", base::dtype_name(state)), base::format_count(static_cast<double>(n)), 0, 0,
          bytes, [&] { b.table().adamw(b.stream(), args); });
  }
  kernels::SumSquaresArgs squares{grad, total};
  b.add("sum of squares", base::format_count(static_cast<double>(n)), 0, 0, 4.0 * static_cast<double>(n),
        [&] { b.table().sum_squares(b.stream(), squares); });
}

// A layer of 64 experts, 8 a token, over 16,384 tokens: forward, both gradients.
void add_experts(Bench& b) {
  int64_t experts = 64, rows = 16384 * 8, channels = 2048, ffn = 1024;
  Tensor offsets = b.integers(
      experts + 1, [&](int64_t e) { return static_cast<int32_t>(rows / experts * e + (e % 3) * 40 * (e < experts)); });
  double flops = 2.0 * static_cast<double>(rows * channels) * static_cast<double>(ffn);
  Tensor x = b.values({rows, channels}, DType::bf16), w = b.values({experts, ffn, channels}, DType::bf16, 0.02f);
  Tensor y = b.values({rows, ffn}, DType::bf16), dw = b.values({experts, ffn, channels}, DType::f32);
  std::string shape = fmt::format("E {} R {} {}x{}", experts, rows, ffn, channels);
  kernels::MatmulArgs forward;
  forward.a = x, forward.b.data = w, forward.c = y, forward.transpose_b = true, forward.group_offsets = offsets;
  b.add("experts forward", shape, 0, flops, 0, [&] { b.table().matmul(b.stream(), forward); });
  kernels::MatmulArgs input;
  input.a = y, input.b.data = w, input.c = x, input.group_offsets = offsets;
  b.add("experts dx", shape, 0, flops, 0, [&] { b.table().matmul(b.stream(), input); });
  kernels::MatmulArgs weight;
  weight.a = y, weight.b.data = x, weight.c = dw, weight.transpose_a = true, weight.accumulate = true;
  weight.group_offsets = offsets;
  b.add("experts dw (+= f32)", shape, 0, flops, 0, [&] { b.table().matmul(b.stream(), weight); });
}

// The columns of make_kernel_report, in its order.
enum : size_t { kModel, kKernel, kShape, kMilliseconds, kTflops, kTbps, kShare, kLimit, kPassMilliseconds, kTokens };

}  // namespace

int64_t TrainingShape::num_parameters() const {
  int64_t qkv = channels * (heads + 2 * kv_heads) * head_dim(), out = channels * channels;
  int64_t mlp = (is_llama ? 3 : 2) * channels * ffn;
  return vocab * channels + (is_llama ? 0 : length * channels) + layers * (qkv + out + mlp);
}

std::vector<TrainingShape> training_shapes() {
  return {{"GPT-2 124M", 64, 1024, 12, 768, 12, 12, 3072, 50304, false},
          {"GPT-2 1.5B", 16, 1024, 48, 1600, 25, 25, 6400, 50304, false},
          {"Llama 1B", 8, 4096, 16, 2048, 32, 8, 8192, 32768, true}};
}

std::vector<KernelTime> measure_kernels(core::Device device, const TrainingShape& s, const std::string& only) {
  Bench b(device, s, only);
  int64_t tokens = s.tokens(), width = (s.heads + 2 * s.kv_heads) * s.head_dim();
  double layers = static_cast<double>(s.layers);
  add_linear(b, "qkv", tokens, width, s.channels, layers, !s.is_llama);
  add_linear(b, "attention out", tokens, s.channels, s.channels, layers, !s.is_llama);
  add_linear(b, "mlp up", tokens, s.is_llama ? 2 * s.ffn : s.ffn, s.channels, layers, !s.is_llama,
             s.is_llama ? Fused::gated_forward : Fused::forward);
  add_linear(b, "mlp down", tokens, s.channels, s.ffn, layers, !s.is_llama,
             s.is_llama ? Fused::gated_input_gradient : Fused::input_gradient);
  if (s.is_llama) add_gated(b, s);
  add_attention(b, s);
  add_norm(b, s);
  add_activation(b, s);
  if (s.is_llama) add_rope(b, s);
  add_ends(b, s);
  add_optimizer(b, s);
  if (s.is_llama) add_experts(b);
  if (core::runtime(device).has_fp8_products()) add_fp8(b, s);
  return b.times;
}

void add_kernel_rows(Report& report, const std::vector<KernelTime>& times, const DeviceCeilings& ceilings) {
  for (const KernelTime& t : times) {
    std::vector<Cell>& row = report.rows.emplace_back(report.columns.size());
    row[kModel] = t.model, row[kKernel] = t.kernel, row[kShape] = t.shape;
    if (t.seconds == 0) continue;
    row[kMilliseconds] = t.seconds * 1e3;
    const bool is_product = t.flops > 0;
    const double rate = (is_product ? t.flops : t.bytes) / t.seconds;
    row[is_product ? kTflops : kTbps] = rate / 1e12;
    row[kShare] = 100 * rate / (is_product ? ceilings.matmul_flops : ceilings.copy_bytes);
    row[kLimit] = is_product ? "bf16 product" : "copy";
    if (t.per_step > 0) row[kPassMilliseconds] = t.seconds * t.per_step * 1e3;
  }
}

void add_pass_rows(Report& report, const std::vector<KernelTime>& times, const TrainingShape& shape) {
  double total = 0, products = 0;
  for (const KernelTime& t : times) {
    if (t.per_step > 0 && t.seconds == 0) return;
    total += t.seconds * t.per_step;
    if (t.flops > 0) products += t.seconds * t.per_step;
  }
  const std::string text = fmt::format("{} x {} tokens, {} layers", shape.sequences, shape.length, shape.layers);
  auto add = [&](const char* what, double seconds) {
    std::vector<Cell>& row = report.rows.emplace_back(report.columns.size());
    row[kModel] = shape.name, row[kKernel] = what, row[kShape] = text;
    row[kShare] = 100 * seconds / total, row[kLimit] = "pass";
    row[kPassMilliseconds] = seconds * 1e3, row[kTokens] = static_cast<double>(shape.tokens()) / seconds;
  };
  add("all kernels of a pass", total);
  add("products and attention alone", products);
}

Report make_kernel_report() {
  return {.name = "gpu_kernels",
          .title = "",
          .columns = {{"model", "model"},
                      {"kernel", "kernel"},
                      {"shape", "shape"},
                      {"ms", "ms", 4},
                      {"tflops", "TFLOP/s", 1},
                      {"tbps", "TB/s", 2},
                      {"share", "%", 0},
                      {"limit", "of"},
                      {"pass_ms", "ms/pass", 2},
                      {"tokens_per_s", "tok/s", 0}},
          .rows = {}};
}

Report bench_gpu_kernels(const Options& options) {
  Report report = make_kernel_report();
  if (!core::cuda_runtime(0)) return report;
  const core::Device gpu{core::DeviceKind::cuda, 0};
  const DeviceCeilings ceilings = measure_ceilings(gpu);
  report.title = fmt::format(
      "Kernels at the sizes of training steps: {}; bf16 product {:.0f} TFLOP/s, copy {:.2f} TB/s in this run",
      core::runtime(gpu).description(), ceilings.matmul_flops / 1e12, ceilings.copy_bytes / 1e12);
  for (const TrainingShape& shape : training_shapes()) {
    const std::vector<KernelTime> times = measure_kernels(gpu, shape, options.only);
    add_kernel_rows(report, times, ceilings);
    if (shape.name.find(options.only) != std::string::npos) add_pass_rows(report, times, shape);
  }
  return report;
}

}  // namespace sinter::bench
