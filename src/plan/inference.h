// Bounds of serving: prefill by arithmetic, decode by bytes, sequences by memory.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "plan/hardware.h"
#include "spec/model_spec.h"

namespace sinter::plan {

// How weights are stored. Matrices take bytes_per_weight, scales of groups included; embeddings and norms stay 16-bit.
struct WeightStorage {
  std::string name;
  MatrixFormat compute =
      MatrixFormat::bf16;  // format the products run in: 8 bits and fewer widen to bf16 when only weights are packed
  double bytes_per_weight = 2;
  double bytes_per_row = 0;  // a 16-bit scale per output channel where weights have one
};
// "bf16", "fp8", "int8", "int4-g32" (4 bits, 16-bit scale and zero per 32), "int4-g128", "q8_0", "q4_k", ...
WeightStorage parse_weight_format(const std::string& text);
const std::vector<std::string>& weight_format_names();

struct InferenceModel {
  double stored_bytes = 0;      // all weights
  double dense_read_bytes = 0;  // read at every step whatever the batch: matrices, norms, head
  double expert_bytes = 0;      // all experts of all layers
  double num_experts = 0, experts_per_token = 0;
  double matmul_parameters = 0;  // a token is multiplied with, head left out
  double head_parameters = 0;
  double attention_width = 0;  // heads * head_dim, summed over layers
  double hidden = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0, vocab = 0;
  std::vector<double> kv_width;  // per layer: elements of K and V per token
  std::vector<double> window;    // per layer: tokens kept; 0 = all
  double kv_bytes_per_element = 2;

  // Expected bytes of weights one decode step of `batch` tokens reads (distinct experts: X (1 - (1 - k/X)^batch)).
  double read_bytes(double batch) const;
  double kv_bytes(double context) const;  // of one sequence
  double attended(double context) const;  // tokens that a new one sees, in the mean over layers
  double kv_bytes_per_token() const { return kv_bytes(1); }
};
InferenceModel make_inference_model(const spec::ModelSpec& spec, const WeightStorage& weights, MatrixFormat kv);

// Shares of the limits reached; the defaults are the bound itself.
struct InferenceEfficiency {
  double bandwidth = 1;        // of the device's memory bandwidth, while weights and cache stream
  double compute = 1;          // of the peak
  bool count_latency = false;  // all-reduce latency under tensor parallelism
  double layer_seconds = 0;    // of every layer beside its bytes: attention, norms, launches, ramps of the products
};
// What a compiled engine reaches on an A100 with weights of this width (see inference.cc for the rows it was fitted
// to).
InferenceEfficiency typical_efficiency(const WeightStorage& weights);

struct Decode {
  double weight_bytes = 0, kv_bytes = 0;  // per step, all devices
  double memory_s = 0, compute_s = 0, communication_s = 0, layers_s = 0, step_s = 0;
  double tokens_per_s = 0;     // of the whole batch
  double mbu_theoretical = 0;  // bytes / (time * bandwidth of the table)
  double mbu_measured = 0;     // against Device::measured_read_bandwidth; 0 = not measured
  const char* bound = "";      // "memory", "compute", "latency"
};
Decode decode_step(const InferenceModel& model, const DeviceSpec& device, const WeightStorage& weights, int tp,
                   double batch, double context, const InferenceEfficiency& efficiency);

// Tokens per second of one sequence at a published bandwidth, under the two ways such figures are counted: by the bytes
// a step reads, or by all stored bytes (the embedding table among them, no cache), as gpt-fast's table did.
struct AtBandwidth {
  double by_read = 0, by_stored = 0;
};
AtBandwidth decode_at(const InferenceModel& model, double bytes_per_second, int tp, double context);

struct Prefill {
  double flops = 0, seconds = 0, tokens_per_s = 0;
  const char* bound = "";
};
Prefill prefill(const InferenceModel& model, const DeviceSpec& device, const WeightStorage& weights, int tp,
                double tokens, const InferenceEfficiency& efficiency);

struct Capacity {
  double weights_per_device = 0, reserve = 0, kv_room = 0;  // bytes per device
  bool fits = false;
  double max_sequences = 0;  // at `context`
  double max_context = 0;    // of one sequence, not above the model's own limit
};
Capacity serving_capacity(const InferenceModel& model, const DeviceSpec& device, int tp, double context,
                          double model_limit);

// Batch at which products take as long as reading the weights: C bytes / (2 W).
double critical_decode_batch(const DeviceSpec& device, const WeightStorage& weights);

// Tensor-parallel widths that divide the heads (and the KV heads, or are a multiple of them), up to `limit`.
std::vector<int> valid_tp(const spec::ModelSpec& spec, int limit);
// Throws UsageError naming the nearest valid width.
void check_tp(const spec::ModelSpec& spec, int64_t tp);

// Steady serving of requests with `prompt` and `output` tokens, `batch` at a time.
struct Serving {
  double output_tokens_per_s = 0, total_tokens_per_s = 0, first_token_s = 0, per_token_s = 0;
  double dollars_per_million_output = 0;
};
Serving serving_rate(const InferenceModel& model, const DeviceSpec& device, const WeightStorage& weights, int tp,
                     double batch, double prompt, double output, const InferenceEfficiency& efficiency,
                     double price_per_hour);

}  // namespace sinter::plan
