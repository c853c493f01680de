#include "plan/check/compare.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "plan/inference.h"
#include "plan/memory.h"
#include "plan/scaling/scaling.h"

namespace sinter::plan {
namespace {

constexpr double kGiB = 1073741824.0;

double at(const std::map<std::string, double>& values, const char* key) {
  auto found = values.find(key);
  return found == values.end() ? 0 : found->second;
}

void add(std::vector<CheckedNumber>& out, const CheckRow& row, const char* quantity, double measured,
         double predicted) {
  if (measured > 0 && predicted > 0 && std::isfinite(predicted))
    out.push_back({row.id, row.source, quantity, measured, predicted});
}

// Memory: nanotron logs its first rank, the others the fullest device.
void compare_memory(const CheckRow& row, std::vector<CheckedNumber>& out) {
  double measured = at(row.measured, "memory_gib") * kGiB;
  if (measured == 0) measured = at(row.measured, "memory_alloc_gib") * kGiB;
  if (measured == 0) measured = at(row.measured, "memory_gb") * (row.software == "nanotron" ? kGiB : 1e9);
  if (measured == 0 || !row.layout_given) return;
  const Software& software = find_software(row.software);
  double predicted = row.software == "nanotron"
                         ? plan_stage_memory(*row.model, row.parallel, software, 0).device.total()
                         : plan_memory(*row.model, row.parallel, software).worst().device.total();
  add(out, row, "memory", measured, predicted);
}

// Published utilisation from the published speed: an arithmetic identity once the convention is right.
void compare_flops(const CheckRow& row, std::vector<CheckedNumber>& out) {
  std::string convention = convention_of(row, false);
  double devices = static_cast<double>(row.cluster->num_devices);
  double rate = at(row.measured, "tokens_per_s");
  if (rate == 0) rate = at(row.measured, "tokens_per_s_per_gpu") * devices;
  if (rate == 0 && at(row.measured, "step_time_s") > 0) {
    rate = static_cast<double>(row.parallel.global_batch * row.parallel.seq_len) / at(row.measured, "step_time_s");
  }
  if (convention.empty() || rate == 0) return;
  double flops = convention_flops(row, convention);
  // nanotron counts the tied embedding once more when a pipeline stores it twice.
  bool counts_twice = convention == "palm" && row.software == "nanotron" && row.parallel.pp > 1 && row.model->tied_head;
  if (counts_twice) flops += 6 * static_cast<double>(row.model->embedding_parameters);
  double per_device = flops * rate / devices;
  add(out, row, "MFU", at(row.measured, "mfu_pct"), 100 * per_device / row.peak_flops);
  add(out, row, "MFU", at(row.measured, "mfu_pct_published"), 100 * per_device / row.peak_flops);
  add(out, row, "FLOP/s", at(row.measured, "model_tflops_per_gpu"), per_device / 1e12);
}

void compare_training(const CheckRow& row, std::vector<CheckedNumber>& out) {
  compare_memory(row, out);
  compare_flops(row, out);
  std::optional<double> measured = measured_step(row);
  if (!measured || !row.time_problem.empty()) return;
  add(out, row, "step time", *measured, predicted_step(row, find_efficiency(row.cluster->device, row.timed())));
}

void compare_layer(const CheckRow& row, std::vector<CheckedNumber>& out) {
  Efficiency efficiency = find_efficiency(row.cluster->device, row.software);
  TimeModel time(*row.model, row.parallel, *row.cluster, find_software(row.software), efficiency,
                 parse_format(row.format));
  TimeModel::LayerTime layer = time.layer(0);
  add(out, row, "layer forward", at(row.measured, "forward_ms") / 1e3, layer.forward);
  add(out, row, "layer backward", at(row.measured, "backward_ms") / 1e3, layer.backward);
}

void compare_gemm(const CheckRow& row, std::vector<CheckedNumber>& out) {
  double m = at(row.layout, "m"), n = at(row.layout, "n"), k = at(row.layout, "k");
  double measured = at(row.measured, "tflops") * 1e12;
  if (m * n * k == 0 || measured == 0) return;
  // Stand-alone products come near the best the device was seen to do; training does not.
  const DeviceSpec& device = row.cluster->device;
  double best = device.attainable[static_cast<size_t>(MatrixFormat::bf16)];
  double rate =
      best > 0 ? std::max(best, 0.93 * device.peak(MatrixFormat::bf16)) : 0.9 * device.peak(MatrixFormat::bf16);
  double bytes = 2 * (m * k + k * n + m * n);
  double seconds = std::max(2 * m * n * k / rate, bytes / (0.85 * device.bandwidth)) + 3e-5;
  add(out, row, "product", measured, 2 * m * n * k / seconds);
}

void compare_collective(const CheckRow& row, std::vector<CheckedNumber>& out) {
  double measured = at(row.measured, "bandwidth_gbs") * 1e9, bytes = at(row.layout, "bytes");
  Efficiency efficiency = find_efficiency(row.cluster->device, "nanotron");
  LinkEfficiency links = efficiency.links;
  links.link_share = 0.95, links.network_share = 0.9,
  links.network_latency = 3e-4;  // stand-alone, this cluster's latency
  Collectives collectives(*row.cluster, links);
  Group group{row.cluster->num_devices, 1};
  double n = static_cast<double>(group.size);
  bool reduces_all = row.operation == "AllReduce";
  double seconds = reduces_all ? collectives.all_reduce(group, bytes) : collectives.all_gather(group, bytes);
  add(out, row, "bus bandwidth", measured, bytes * (reduces_all ? 2.0 : 1.0) * (n - 1) / n / seconds);
}

// Model state from the parameter count alone: ZeRO's table and DeepSpeed's estimator (which adds 2 bytes of fp32-side
// buffers per parameter and counts the largest layer twice over when stage 3 gathers it).
void compare_state(const CheckRow& row, std::vector<CheckedNumber>& out) {
  double parameters = at(row.layout, "params_reported"), shards = static_cast<double>(row.parallel.dp());
  if (parameters == 0) return;
  int zero = row.parallel.zero;
  double bytes = 2.0 / (zero >= 3 ? shards : 1) + 2.0 / (zero >= 2 ? shards : 1) + 12.0 / (zero >= 1 ? shards : 1);
  add(out, row, "model state", at(row.measured, "model_state_gb_per_gpu"), bytes * parameters / 1e9);
  double estimate = 4 * parameters + 16 * parameters / shards;
  if (zero == 3) {
    double per_parameter = row.words.find("both") != std::string::npos        ? 0
                           : row.words.find("optimizer") != std::string::npos ? 2
                                                                              : 18;
    estimate = 4 * at(row.layout, "largest_layer_params") + per_parameter * parameters / shards;
  }
  add(out, row, "model state", at(row.measured, "model_state_gib_per_gpu"), estimate / kGiB);
}

// Korthikanti's figures: parameters and optimizer, activations, and activations against tensor parallelism alone.
void compare_parts(const CheckRow& row, std::vector<CheckedNumber>& out) {
  if (!row.model) return;
  const Software& software = find_software(row.software);
  spec::ParallelSpec p = row.parallel;
  p.main_gradients = base::DType::bf16;
  MemoryParts parts = plan_stage_memory(*row.model, p, software, 0).device;
  add(out, row, "model state", at(row.measured, "params_optim_gib") * kGiB, parts.model_state());
  add(out, row, "activations", at(row.measured, "activations_gib") * kGiB, parts.activations);
  double share = at(row.measured, "activation_pct_of_tp_baseline");
  if (share == 0) return;
  auto per_layer = [&](const spec::ParallelSpec& layout) {
    BlockActivations a = block_activations(*row.model, row.model->kinds[0], layout, software);
    if (layout.recompute == spec::Recompute::full) return a.checkpoint;
    return layout.recompute == spec::Recompute::selective ? a.attention + a.mlp : a.total();
  };
  spec::ParallelSpec baseline = p;
  baseline.sequence_parallel = false;
  baseline.recompute = spec::Recompute::none;
  add(out, row, "activations", share / 100, per_layer(p) / per_layer(baseline));
}

WeightStorage weight_format_of(const std::string& words) {
  std::string name = words.substr(0, words.find(' '));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (name == "gf4") {  // eight 3-bit weights and an 8-bit scale in 32 bits
    WeightStorage format;
    format.name = "gf4";
    format.bytes_per_weight = 0.5;
    return format;
  }
  return parse_weight_format(name);
}

void compare_inference(const CheckRow& row, std::vector<CheckedNumber>& out) {
  WeightStorage weights = weight_format_of(row.weight_format.empty() ? "bf16" : row.weight_format);
  MatrixFormat kv = row.kv_format.empty() ? MatrixFormat::fp16 : parse_format(row.kv_format);
  InferenceModel model = make_inference_model(*row.spec, weights, kv);
  InferenceEfficiency efficiency = typical_efficiency(weights);
  efficiency.count_latency = true;
  if (row.source == "calm") {  // one fused kernel per token, no launches in between
    efficiency.bandwidth = 0.88;
    efficiency.layer_seconds = 0;
  }
  int tp = static_cast<int>(row.parallel.tp);
  double batch = static_cast<double>(row.parallel.global_batch), length = static_cast<double>(row.parallel.seq_len);
  const DeviceSpec& device = row.cluster->device;
  if (row.kind == "decode") {
    Decode d = decode_step(model, device, weights, tp, batch, length, efficiency);
    add(out, row, "decode tokens/s", at(row.measured, "tokens_per_s"), d.tokens_per_s);
  } else if (row.kind == "prefill") {
    Prefill p = prefill(model, device, weights, tp, batch * length, efficiency);
    add(out, row, "first token", at(row.measured, "first_token_ms") / 1e3, p.seconds);
    double token_ms = at(row.measured, "decode_ms_per_token");
    Decode d = decode_step(model, device, weights, tp, batch, length, efficiency);
    if (token_ms > 0) add(out, row, "decode tokens/s", 1e3 / token_ms, d.tokens_per_s);
  } else {
    Serving s = serving_rate(model, device, weights, tp, batch, at(row.measured, "input_len"),
                             at(row.measured, "output_len"), efficiency, 0);
    add(out, row, "served tokens/s", at(row.measured, "output_tokens_per_s_per_gpu"), s.output_tokens_per_s / tp);
  }
}

void compare_run(const CheckRow& row, std::vector<CheckedNumber>& out) {
  double tokens = at(row.measured, "tokens"), reported = at(row.layout, "params_reported");
  add(out, row, "training FLOPs", at(row.measured, "train_flops"), 6 * reported * tokens);
  if (double flops = at(row.measured, "optimal_flops"); flops > 0) {
    Optimum best = compute_optimal(scaling_law(kDefaultLaw), flops);
    add(out, row, "optimal tokens", at(row.measured, "optimal_tokens"), best.tokens);
    add(out, row, "optimal size", reported, best.parameters);
  }
  if (!row.model || !row.cluster) return;
  // Hours of whole runs include what a step does not: 40 % of the peak is what such runs come to.
  double flops = 6 * static_cast<double>(row.model->active_parameters()) * tokens;
  double rate = 0.40 * row.cluster->device.compute_rate(MatrixFormat::bf16);
  double hours = at(row.measured, "gpu_hours");
  if (hours == 0) hours = at(row.measured, "gpu_hours_pretrain");
  add(out, row, "GPU hours at 40 % MFU", hours, flops / rate / 3600);
}

}  // namespace

void compare_row(const CheckRow& row, std::vector<CheckedNumber>& out) {
  if (row.kind == "train") compare_training(row, out);
  if (row.kind == "layer_time") compare_layer(row, out);
  if (row.kind == "gemm" && row.cluster) compare_gemm(row, out);
  if (row.kind == "collective" && row.cluster) compare_collective(row, out);
  if (row.kind == "memory") {
    compare_state(row, out);
    compare_parts(row, out);
  }
  if (row.kind == "decode" || row.kind == "prefill" || row.kind == "serve_throughput") compare_inference(row, out);
  if (row.kind == "run_cost" || row.kind == "flops" || row.kind == "scaling_law") compare_run(row, out);
}

}  // namespace sinter::plan
