#include "plan/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "spec/parameters.h"

namespace sinter::plan {
namespace {

struct NamedFormat {
  const char* name;
  double bytes;
  MatrixFormat compute;
};
// Block formats: q8_0 34 bytes per 32, q4_0 18 per 32, q4_k 144, q5_k 176, q6_k 210 per 256 weights.
constexpr NamedFormat kFormats[] = {{"fp32", 4, MatrixFormat::fp32},
                                    {"bf16", 2, MatrixFormat::bf16},
                                    {"fp16", 2, MatrixFormat::fp16},
                                    {"fp8", 1, MatrixFormat::fp8},
                                    {"int8", 1, MatrixFormat::bf16},
                                    {"w8a8", 1, MatrixFormat::int8},
                                    {"int4-g32", 0.625, MatrixFormat::bf16},
                                    {"int4-g64", 0.5625, MatrixFormat::bf16},
                                    {"int4-g128", 0.53125, MatrixFormat::bf16},
                                    {"fp4", 0.5625, MatrixFormat::fp4},
                                    {"mxfp4", 0.53125, MatrixFormat::bf16},
                                    {"nf4", 0.5625, MatrixFormat::bf16},
                                    {"q8_0", 34.0 / 32, MatrixFormat::bf16},
                                    {"q6_k", 210.0 / 256, MatrixFormat::bf16},
                                    {"q5_k", 176.0 / 256, MatrixFormat::bf16},
                                    {"q4_k", 144.0 / 256, MatrixFormat::bf16},
                                    {"q4_0", 18.0 / 32, MatrixFormat::bf16}};

constexpr double kRuntimeBytes = 1.5 * 0x1p30;  // context, kernels, communication buffers
constexpr double kRuntimeShare = 0.03;          // activations and what the allocator loses
// Time of a small all-reduce over NVLink: 10, 12 and 14 us among 2, 4 and 8.
double all_reduce_latency(int tp) { return tp > 1 ? (8 + 2 * std::log2(tp)) * 1e-6 : 0; }

// gpt-fast on A100-80GB, one sequence. A step takes bytes / (share x bandwidth) plus a time per layer that depends on
// neither bytes nor tensor parallelism. The shares are those of the three Llama-2-7B rows (104.9, 155.58 and 196.8
// tokens/s, 208 positions of cache read); the layer and the all-reduces above are fitted to the table's other dense
// rows (8B and 70B, 1 to 8 devices), which then come out within 3 % on average. inference_test.cc repeats both.
constexpr double kWideShare = 0.8171, kByteShare = 0.6736, kNibbleShare = 0.5864;
constexpr double kLayerSeconds = 48e-6;

}  // namespace

const std::vector<std::string>& weight_format_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const NamedFormat& f : kFormats) out.emplace_back(f.name);
    return out;
  }();
  return names;
}

WeightStorage parse_weight_format(const std::string& text) {
  const std::string name = text == "int4"       ? "int4-g128"
                           : text == "bfloat16" ? "bf16"
                           : text == "float16"  ? "fp16"
                                                : text;
  for (const NamedFormat& f : kFormats) {
    const bool has_row_scales = name == "int8" || name == "w8a8" || name == "fp8";
    if (name == f.name) return {f.name, f.compute, f.bytes, has_row_scales ? 2.0 : 0.0};
  }
  base::fail_usage("unknown weight format '{}'; known: {}{}", text, fmt::join(weight_format_names(), ", "),
                   base::did_you_mean(text, weight_format_names()));
}

InferenceModel make_inference_model(const spec::ModelSpec& spec, const WeightStorage& weights, MatrixFormat kv) {
  InferenceModel m;
  const double plain = std::max(2.0, weights.bytes_per_weight);  // embeddings, norms, biases, router
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    if (p.layer > spec.num_layers) continue;  // extra prediction heads do not serve
    auto n = static_cast<double>(p.num_elements());
    using enum spec::ParameterRole;
    const bool packed = p.role == matrix || p.role == expert_matrix || p.role == head;
    double bytes = n * (packed ? weights.bytes_per_weight : plain);
    if (packed) bytes += weights.bytes_per_row * static_cast<double>(p.shape.rows());
    m.stored_bytes += bytes;
    if (p.role == expert_matrix) {
      m.expert_bytes += bytes;
      m.matmul_parameters +=
          n * static_cast<double>(spec.moe.experts_per_token) / static_cast<double>(spec.moe.num_experts);
    } else if (p.role == embedding) {
      if (spec.tied_head) m.dense_read_bytes += bytes;  // the head reads it whole
    } else if (p.role != position) {
      m.dense_read_bytes += bytes;
    }
    if (p.role == matrix || p.role == router) m.matmul_parameters += n;
  }
  m.num_experts = static_cast<double>(spec.moe.num_experts);
  m.experts_per_token = static_cast<double>(spec.moe.experts_per_token);
  m.head_parameters = static_cast<double>(spec.vocab_size * spec.hidden);
  m.attention_width = static_cast<double>(spec.q_width() * spec.num_layers);
  m.hidden = static_cast<double>(spec.hidden);
  m.num_layers = static_cast<double>(spec.num_layers);
  m.num_heads = static_cast<double>(spec.num_heads);
  m.num_kv_heads = static_cast<double>(spec.num_kv_heads);
  m.vocab = static_cast<double>(spec.vocab_size);
  m.kv_bytes_per_element = format_bytes_per_element(kv);
  for (int64_t l = 0; l < spec.num_layers; ++l) {
    m.kv_width.push_back(2 * static_cast<double>(spec.kv_width()));
    m.window.push_back(static_cast<double>(spec.window_of(l)));
  }
  return m;
}

double InferenceModel::read_bytes(double batch) const {
  if (num_experts == 0) return dense_read_bytes;
  double touched = 1 - std::pow(1 - experts_per_token / num_experts, batch);
  return dense_read_bytes + expert_bytes * touched;
}

double InferenceModel::kv_bytes(double context) const {
  double bytes = 0;
  for (size_t l = 0; l < kv_width.size(); ++l) {
    bytes += kv_width[l] * (window[l] > 0 ? std::min(context, window[l]) : context) * kv_bytes_per_element;
  }
  return bytes;
}

double InferenceModel::attended(double context) const {
  double sum = 0;
  for (double kept : window) sum += kept > 0 ? std::min(context, kept) : context;
  return window.empty() ? context : sum / static_cast<double>(window.size());
}

InferenceEfficiency typical_efficiency(const WeightStorage& weights) {
  const double bytes = weights.bytes_per_weight;
  return {bytes >= 2 ? kWideShare : bytes >= 1 ? kByteShare : kNibbleShare, 0.60, true, kLayerSeconds};
}

Decode decode_step(const InferenceModel& m, const DeviceSpec& device, const WeightStorage& weights, int tp,
                   double batch, double context, const InferenceEfficiency& efficiency) {
  Decode d;
  d.weight_bytes = m.read_bytes(batch);
  // Each device holds all KV heads' share; with more devices than KV heads every head is held more than once.
  const double kv_copies = std::max(1.0, tp / m.num_kv_heads);
  d.kv_bytes = batch * m.kv_bytes(context) * kv_copies;
  const double flops =
      batch * (2 * (m.matmul_parameters + m.head_parameters) + 4 * m.attention_width * m.attended(context));
  const double bandwidth = device.bandwidth * efficiency.bandwidth * tp;
  d.memory_s = (d.weight_bytes + d.kv_bytes) / bandwidth;
  d.compute_s = flops / (device.compute_rate(weights.compute) * efficiency.compute * tp);
  if (efficiency.count_latency && tp > 1) {
    const double bytes = batch * m.hidden * 2;
    d.communication_s = 2 * m.num_layers * (all_reduce_latency(tp) + 2.0 * (tp - 1) / tp * bytes / device.pair_link());
  }
  d.layers_s = m.num_layers * efficiency.layer_seconds;
  // Attention always waits for the cache; products wait for the slower of weights and arithmetic.
  const double kv_s = d.kv_bytes / bandwidth, weights_s = d.weight_bytes / bandwidth;
  d.step_s = kv_s + std::max(weights_s, d.compute_s) + d.communication_s + d.layers_s;
  d.bound = d.communication_s + d.layers_s > std::max(d.memory_s, d.compute_s) ? "latency"
            : d.compute_s > weights_s                                          ? "compute"
                                                                               : "memory";
  d.tokens_per_s = batch / d.step_s;
  d.mbu_theoretical = (d.weight_bytes + d.kv_bytes) / (d.step_s * device.bandwidth * tp);
  if (device.measured_read_bandwidth > 0) {
    d.mbu_measured = (d.weight_bytes + d.kv_bytes) / (d.step_s * device.measured_read_bandwidth * tp);
  }
  return d;
}

AtBandwidth decode_at(const InferenceModel& m, double bytes_per_second, int tp, double context) {
  const double kv_copies = std::max(1.0, tp / m.num_kv_heads);
  return {bytes_per_second * tp / (m.read_bytes(1) + m.kv_bytes(context) * kv_copies),
          bytes_per_second * tp / m.stored_bytes};
}

Prefill prefill(const InferenceModel& m, const DeviceSpec& device, const WeightStorage& weights, int tp, double tokens,
                const InferenceEfficiency& efficiency) {
  Prefill p;
  double seen = 0;  // sum over layers of keys seen by all queries, causal
  for (double window : m.window) {
    double w = window > 0 ? std::min(window, tokens) : tokens;
    seen += w * (w / 2) + (tokens - w) * w;
  }
  p.flops = 2 * m.matmul_parameters * tokens + 2 * m.head_parameters + 4 * m.attention_width / m.num_layers * seen;
  const double compute = p.flops / (device.compute_rate(weights.compute) * efficiency.compute * tp);
  const double memory = m.read_bytes(tokens) / (device.bandwidth * efficiency.bandwidth * tp);
  double communication = 0;
  if (efficiency.count_latency && tp > 1) {
    communication = 2 * m.num_layers *
                    (all_reduce_latency(tp) + 2.0 * (tp - 1) / tp * tokens * m.hidden * 2 / device.pair_link() / 0.65);
  }
  p.seconds = std::max(compute, memory) + communication;
  p.bound = communication > std::max(compute, memory) ? "latency" : compute >= memory ? "compute" : "memory";
  p.tokens_per_s = tokens / p.seconds;
  return p;
}

Capacity serving_capacity(const InferenceModel& m, const DeviceSpec& device, int tp, double context,
                          double model_limit) {
  Capacity c;
  c.weights_per_device = m.stored_bytes / tp;
  c.reserve = kRuntimeBytes + kRuntimeShare * device.memory_bytes;
  c.kv_room = device.memory_bytes - c.weights_per_device - c.reserve;
  c.fits = c.kv_room > 0;
  if (!c.fits) return c;
  const double cut = std::min<double>(tp, m.num_kv_heads);
  c.max_sequences = std::floor(c.kv_room / (m.kv_bytes(context) / cut));
  // The cache grows steadily with the context (less with windows): bisect.
  double low = 0, high = model_limit;
  if (m.kv_bytes(high) / cut <= c.kv_room) {
    c.max_context = high;
    return c;
  }
  for (int i = 0; i < 60; ++i) {
    double middle = 0.5 * (low + high);
    (m.kv_bytes(middle) / cut <= c.kv_room ? low : high) = middle;
  }
  c.max_context = std::floor(low);
  return c;
}

double critical_decode_batch(const DeviceSpec& device, const WeightStorage& weights) {
  return device.compute_rate(weights.compute) * weights.bytes_per_weight / (2 * device.bandwidth);
}

std::vector<int> valid_tp(const spec::ModelSpec& spec, int limit) {
  std::vector<int> out;
  for (int tp = 1; tp <= limit; ++tp) {
    if (spec.num_heads % tp == 0 && (spec.num_kv_heads % tp == 0 || tp % spec.num_kv_heads == 0)) out.push_back(tp);
  }
  return out;
}

void check_tp(const spec::ModelSpec& spec, int64_t tp) {
  if (tp < 1) base::fail_usage("tp is {}; the least is 1", tp);
  std::vector<int> valid = valid_tp(spec, static_cast<int>(spec.num_heads));
  if (std::find(valid.begin(), valid.end(), tp) != valid.end()) return;
  int nearest = *std::min_element(valid.begin(), valid.end(),
                                  [&](int64_t a, int64_t b) { return std::abs(a - tp) < std::abs(b - tp); });
  base::fail_usage("tp {} does not divide {} heads and {} KV heads; the nearest that does is {}", tp, spec.num_heads,
                   spec.num_kv_heads, nearest);
}

Serving serving_rate(const InferenceModel& m, const DeviceSpec& device, const WeightStorage& weights, int tp,
                     double batch, double prompt, double output, const InferenceEfficiency& efficiency,
                     double price_per_hour) {
  Serving s;
  Prefill first = prefill(m, device, weights, tp, prompt, efficiency);
  Decode step = decode_step(m, device, weights, tp, batch, prompt + output / 2, efficiency);
  // While one sequence of the batch lives it takes `output` steps, and every sequence one prefill.
  const double seconds = output * step.step_s + batch * first.seconds;
  s.output_tokens_per_s = batch * output / seconds;
  s.total_tokens_per_s = batch * (prompt + output) / seconds;
  s.first_token_s = first.seconds;
  s.per_token_s = step.step_s;
  s.dollars_per_million_output = price_per_hour * tp / 3600 / s.output_tokens_per_s * 1e6;
  return s;
}

}  // namespace sinter::plan
