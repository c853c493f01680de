// `sinter plan inference`: what serving a model on a device can reach, and what it costs.
#include "plan/inference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan.h"
#include "plan/models.h"
#include "spec/parameters.h"

namespace sinter::cli {
namespace {

using nlohmann::json;

struct InferenceOptions {
  ClusterOptions cluster;
  std::string model, weights = "bf16", kv = "bf16";
  int tp = 0;
  double prompt = 0, output = 0, batch = 0, context = 0, achieved = 0, mbu = 0, mfu = 0;
  bool json = false, explain = false;
};

// The model on the device with everything the tables need.
struct Setting {
  spec::ModelSpec spec;
  plan::Cluster cluster;
  plan::WeightStorage weights;
  plan::InferenceModel model;
  plan::InferenceEfficiency typical;
  double context = 0;
};

// 1024 and 256 tokens unless told, fewer where the model has not the positions.
void choose_lengths(const spec::ModelSpec& spec, InferenceOptions& o) {
  const double positions = spec.max_positions > 0 ? static_cast<double>(spec.max_positions) : 1e18;
  if (o.output == 0) o.output = std::min(256.0, std::max(1.0, std::floor(positions / 4)));
  if (o.prompt == 0) o.prompt = std::clamp(positions - o.output, 1.0, 1024.0);
}

Setting make_setting(InferenceOptions& o) {
  Setting s;
  s.spec = plan::resolve_model(o.model).spec;
  choose_lengths(s.spec, o);
  s.cluster = make_cluster(o.cluster);
  s.weights = plan::parse_weight_format(o.weights);
  s.model = plan::make_inference_model(s.spec, s.weights, plan::parse_format(o.kv));
  s.typical = plan::typical_efficiency(s.weights);
  // A bandwidth told by the user is that of the whole step.
  if (o.mbu != 0) s.typical.bandwidth = o.mbu;
  if (o.achieved != 0) s.typical.bandwidth = o.achieved * 1e9 / s.cluster.device.bandwidth;
  if (o.mbu != 0 || o.achieved != 0) s.typical.layer_seconds = 0;
  if (o.mfu != 0) s.typical.compute = o.mfu;
  auto share = [](double value, const char* flag) {
    if (!(value > 0 && value <= 1))
      base::fail_usage("{} gives a share of {:g}; expected more than 0 and at most 1", flag, value);
  };
  share(s.typical.bandwidth, o.achieved != 0 ? "--achieved" : "--mbu");
  share(s.typical.compute, "--mfu");
  if (o.context < 0 || o.batch < 0) base::fail_usage("--context and --batch are at least 1");
  s.context = o.context > 0 ? o.context : o.prompt + o.output;
  if (s.spec.max_positions > 0 && s.context > static_cast<double>(s.spec.max_positions)) {
    base::fail_usage("a context of {:g} tokens is more than the model's {}; lower {}", s.context, s.spec.max_positions,
                     o.context > 0 ? "--context" : "--prompt or --output");
  }
  if (o.prompt + o.output > s.context) {
    base::fail_usage("--prompt {:g} and --output {:g} are more than --context {:g}; lower them or raise it", o.prompt,
                     o.output, s.context);
  }
  if (o.tp != 0) plan::check_tp(s.spec, o.tp);
  if (o.tp > s.cluster.per_node) {
    base::fail_usage("--tp {} is more than the {} devices of a node, which alone are joined closely enough", o.tp,
                     s.cluster.per_node);
  }
  return s;
}

std::vector<int> tp_choices(const InferenceOptions& o, const Setting& s) {
  if (o.tp != 0) return {o.tp};
  std::vector<int> out;
  int limit = static_cast<int>(std::min<int64_t>(s.cluster.per_node, std::max<int64_t>(s.cluster.num_devices, 8)));
  for (int tp : plan::valid_tp(s.spec, limit)) {
    if ((tp & (tp - 1)) == 0) out.push_back(tp);
  }
  return out;
}

struct Choice {
  int tp = 1;
  double batch = 1;
  plan::Capacity capacity;
  plan::Decode bound, typical;
  plan::Prefill prefill_bound, prefill_typical;
  bool has_room = false;  // for one sequence and more
  plan::Serving serving;  // zero where `batch` does not fit
};

Choice evaluate(const InferenceOptions& o, const Setting& s, int tp) {
  Choice c;
  c.tp = tp;
  const plan::DeviceSpec& device = s.cluster.device;
  c.capacity = plan::serving_capacity(s.model, device, tp, s.context, static_cast<double>(s.spec.max_positions));
  c.has_room = c.capacity.fits && c.capacity.max_sequences >= 1;
  if (!c.has_room) return c;
  c.batch = o.batch > 0 ? o.batch : std::max(1.0, std::min(c.capacity.max_sequences, 256.0));
  c.bound = plan::decode_step(s.model, device, s.weights, tp, 1, s.context, {});
  c.typical = plan::decode_step(s.model, device, s.weights, tp, 1, s.context, s.typical);
  c.prefill_bound = plan::prefill(s.model, device, s.weights, tp, o.prompt, {});
  c.prefill_typical = plan::prefill(s.model, device, s.weights, tp, o.prompt, s.typical);
  if (c.batch > c.capacity.max_sequences) return c;
  c.serving = plan::serving_rate(s.model, device, s.weights, tp, c.batch, o.prompt, o.output, s.typical,
                                 s.cluster.price_per_hour);
  return c;
}

json choice_json(const Choice& c) {
  json out{{"tp", c.tp},
           {"fits", c.capacity.fits},
           {"weights_per_device", c.capacity.weights_per_device},
           {"kv_room_per_device", std::max(0.0, c.capacity.kv_room)},
           {"max_sequences", c.capacity.max_sequences},
           {"max_context", c.capacity.max_context}};
  if (!c.has_room) return out;
  auto decode = [](const plan::Decode& d) {
    return json{{"tokens_per_s", d.tokens_per_s},
                {"step_s", d.step_s},
                {"bound", d.bound},
                {"mbu_theoretical", d.mbu_theoretical},
                {"mbu_measured", d.mbu_measured}};
  };
  out.update(json{{"decode_bound", decode(c.bound)},
                  {"decode_expected", decode(c.typical)},
                  {"prefill_bound_s", c.prefill_bound.seconds},
                  {"prefill_expected_s", c.prefill_typical.seconds},
                  {"prefill_flops", c.prefill_bound.flops},
                  {"batch", c.batch},
                  {"batch_fits", c.batch <= c.capacity.max_sequences}});
  if (c.serving.output_tokens_per_s == 0) return out;
  out.update(json{{"output_tokens_per_s", c.serving.output_tokens_per_s},
                  {"total_tokens_per_s", c.serving.total_tokens_per_s},
                  {"first_token_s", c.serving.first_token_s},
                  {"per_token_s", c.serving.per_token_s},
                  {"dollars_per_million_output", c.serving.dollars_per_million_output}});
  return out;
}

void print_choices(const Setting& s, const InferenceOptions& o, const std::vector<Choice>& choices) {
  base::Table table({"tp", "weights/dev", "KV room/dev", "sequences", "max context", "prefill", "tok/s alone (bound)",
                     "tok/s alone", "batch", "tok/s", "tok/s/dev", "$/M out"});
  for (const Choice& c : choices) {
    if (!c.has_room) {
      table.add_row({std::to_string(c.tp), base::format_bytes(c.capacity.weights_per_device), "does not fit", "-", "-",
                     "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const bool fits = c.serving.output_tokens_per_s > 0;
    table.add_row({std::to_string(c.tp), base::format_bytes(c.capacity.weights_per_device),
                   base::format_bytes(c.capacity.kv_room), fmt::format("{:.0f}", c.capacity.max_sequences),
                   fmt::format("{:.0f}", c.capacity.max_context), base::format_duration(c.prefill_typical.seconds),
                   fmt::format("{:.1f}", c.bound.tokens_per_s), fmt::format("{:.1f}", c.typical.tokens_per_s),
                   fits ? fmt::format("{:.0f}", c.batch) : "does not fit",
                   fits ? fmt::format("{:.0f}", c.serving.output_tokens_per_s) : "-",
                   fits ? fmt::format("{:.0f}", c.serving.output_tokens_per_s / c.tp) : "-",
                   fits ? fmt::format("{:.3f}", c.serving.dollars_per_million_output) : "-"});
  }
  fmt::print("Tensor parallel width on {} ({:g} prompt + {:g} output tokens per request, cache for {:g})\n{}",
             s.cluster.device.name, o.prompt, o.output, s.context, table.to_string());
}

// Where --batch has no room: how many sequences do.
void print_batch_note(const InferenceOptions& o, const std::vector<Choice>& choices) {
  std::vector<std::string> room;
  for (const Choice& c : choices) {
    if (c.has_room && c.batch > c.capacity.max_sequences)
      room.push_back(fmt::format("{:.0f} at tp {}", c.capacity.max_sequences, c.tp));
  }
  if (room.empty()) return;
  fmt::print(
      "--batch {:.0f} DOES NOT FIT: the most sequences with a cache of this length are {}; no rates are given there.\n",
      o.batch, fmt::join(room, ", "));
}

void print_formats(const InferenceOptions& o, const Setting& s, int tp, json& out) {
  base::Table table({"weights", "bytes/weight", "stored", "fits", "critical batch", "tok/s alone (bound)",
                     "tok/s alone", "GB/s", "MBU", "MBU (measured)"});
  out["formats"] = json::array();
  for (const char* name : {"fp32", "bf16", "fp8", "int8", "q4_k", "int4-g32", "int4-g128"}) {
    plan::WeightStorage w = plan::parse_weight_format(name);
    plan::InferenceModel m = plan::make_inference_model(s.spec, w, plan::parse_format(o.kv));
    plan::InferenceEfficiency typical = w.name == s.weights.name ? s.typical : plan::typical_efficiency(w);
    plan::Capacity capacity = plan::serving_capacity(m, s.cluster.device, tp, s.context, s.context);
    plan::Decode bound = plan::decode_step(m, s.cluster.device, w, tp, 1, s.context, {}),
                 expected = plan::decode_step(m, s.cluster.device, w, tp, 1, s.context, typical);
    double critical = plan::critical_decode_batch(s.cluster.device, w);
    table.add_row({name, fmt::format("{:.3f}", w.bytes_per_weight), base::format_bytes(m.stored_bytes),
                   capacity.fits ? "yes" : "no", fmt::format("{:.0f}", critical),
                   fmt::format("{:.1f}", bound.tokens_per_s),
                   capacity.fits ? fmt::format("{:.1f}", expected.tokens_per_s) : "-",
                   fmt::format("{:.0f}", expected.mbu_theoretical * s.cluster.device.bandwidth / 1e9),
                   fmt::format("{:.1f} %", 100 * expected.mbu_theoretical),
                   expected.mbu_measured > 0 ? fmt::format("{:.1f} %", 100 * expected.mbu_measured) : "-"});
    out["formats"].push_back({{"weights", name},
                              {"bytes_per_weight", w.bytes_per_weight},
                              {"stored_bytes", m.stored_bytes},
                              {"fits", capacity.fits},
                              {"critical_batch", critical},
                              {"tokens_per_s_bound", bound.tokens_per_s},
                              {"tokens_per_s_expected", expected.tokens_per_s},
                              {"mbu", expected.mbu_theoretical},
                              {"mbu_measured", expected.mbu_measured}});
  }
  if (!o.json) fmt::print("\nWeight formats at tp {}, one sequence\n{}", tp, table.to_string());
}

// Published GB/s come in two conventions; the tokens/s that follow from each.
void print_at_bandwidth(const InferenceOptions& o, const Setting& s, json& out) {
  const int tp = std::max(1, o.tp);
  plan::AtBandwidth rate = plan::decode_at(s.model, o.achieved * 1e9, tp, s.context);
  out["at_bandwidth"] = {
      {"gb_s", o.achieved}, {"tokens_per_s_by_read", rate.by_read}, {"tokens_per_s_by_stored", rate.by_stored}};
  if (o.json) return;
  fmt::print(
      "\nOne sequence at {:g} GB/s per device: {:.1f} tokens/s by the bytes a step reads ({:.3f} GB of weights, {:.3f} "
      "GB "
      "of cache);\n{:.1f} where the figure counts all {:.3f} GB stored and no cache, as gpt-fast's table does for "
      "packed "
      "weights.\n",
      o.achieved, rate.by_read, s.model.read_bytes(1) / 1e9, s.model.kv_bytes(s.context) / 1e9, rate.by_stored,
      s.model.stored_bytes / 1e9);
}

std::vector<ExplainedLine> explain(const InferenceOptions& o, const Setting& s, const Choice& c) {
  const plan::DeviceSpec& d = s.cluster.device;
  const plan::InferenceModel& m = s.model;
  return {
      {"weights stored", "matrices x bytes per weight + embeddings and norms x 2",
       fmt::format("{} at {:g} bytes", s.weights.name, s.weights.bytes_per_weight), base::format_bytes(m.stored_bytes)},
      {"KV bytes per token", "2 x layers x KV heads x head dim x bytes",
       fmt::format("2 x {} x {} x {} x {:g}", s.spec.num_layers, s.spec.num_kv_heads, s.spec.head_dim,
                   m.kv_bytes_per_element),
       fmt::format("{:.0f} bytes", m.kv_bytes_per_token())},
      {"decode bound, one sequence", "tp x bandwidth / (weights read + KV of the context)",
       fmt::format("{} x {:.4g} / ({:.5g} + {:.4g})", c.tp, d.bandwidth, c.bound.weight_bytes, c.bound.kv_bytes),
       fmt::format("{:.1f} tokens/s", c.bound.tokens_per_s)},
      {"decode expected", "1 / (bytes / (tp x share x bandwidth) + layers x (time beside bytes + 2 all-reduces))",
       fmt::format("1 / ({:.5g} / ({} x {:.4f} x {:.4g}) + {} x {:.3g} + {:.3g})",
                   c.typical.weight_bytes + c.typical.kv_bytes, c.tp, s.typical.bandwidth, d.bandwidth,
                   s.spec.num_layers, s.typical.layer_seconds, c.typical.communication_s),
       fmt::format("{:.1f} tokens/s", c.typical.tokens_per_s)},
      {"MBU", "bytes per token x tokens/s / (tp x bandwidth of the table)",
       fmt::format("{:.5g} x {:.1f} / ({} x {:.4g})", c.typical.weight_bytes + c.typical.kv_bytes,
                   c.typical.tokens_per_s, c.tp, d.bandwidth),
       fmt::format("{:.1f} %", 100 * c.typical.mbu_theoretical)},
      {"MBU against the measured bandwidth", "the same over the best bandwidth measured",
       d.measured_read_bandwidth > 0 ? fmt::format("{:.4g} bytes/s", d.measured_read_bandwidth) : "not measured",
       d.measured_read_bandwidth > 0 ? fmt::format("{:.1f} %", 100 * c.typical.mbu_measured) : "-"},
      {"prefill bound", "(2 N s + 2 L A s^2 + 2 V C) / (tp x peak)",
       fmt::format("{:.4g} / ({} x {:.4g})", c.prefill_bound.flops, c.tp, d.compute_rate(s.weights.compute)),
       base::format_duration(c.prefill_bound.seconds)},
      {"critical batch", "peak x bytes per weight / (2 x bandwidth)",
       fmt::format("{:.4g} x {:g} / (2 x {:.4g})", d.compute_rate(s.weights.compute), s.weights.bytes_per_weight,
                   d.bandwidth),
       fmt::format("{:.0f}", plan::critical_decode_batch(d, s.weights))},
      {"sequences at once", "(memory - weights/tp - reserve) / (KV per sequence / min(tp, KV heads))",
       fmt::format("({:.4g} - {:.4g} - {:.3g}) / ({:.4g} / {:g})", d.memory_bytes, c.capacity.weights_per_device,
                   c.capacity.reserve, m.kv_bytes(s.context), std::min<double>(c.tp, m.num_kv_heads)),
       fmt::format("{:.0f}", c.capacity.max_sequences)},
      {"output tokens/s", "batch x output / (output x step + batch x prefill)",
       fmt::format("{:g} x {:g} / ({:g} x {:.4g} + {:g} x {:.4g})", c.batch, o.output, o.output, c.serving.per_token_s,
                   c.batch, c.serving.first_token_s),
       fmt::format("{:.0f}", c.serving.output_tokens_per_s)},
      {"cost per million output tokens", "price x tp / 3600 / rate x 1e6",
       fmt::format("{:g} x {} / 3600 / {:.4g} x 1e6", s.cluster.price_per_hour, c.tp, c.serving.output_tokens_per_s),
       fmt::format("${:.3f}", c.serving.dollars_per_million_output)}};
}

void run_inference(InferenceOptions o) {
  Setting s = make_setting(o);
  std::vector<Choice> choices;
  for (int tp : tp_choices(o, s)) choices.push_back(evaluate(o, s, tp));
  const Choice *cheapest = nullptr, *first = nullptr;
  json out{{"model", o.model},
           {"device", s.cluster.device.name},
           {"weights", s.weights.name},
           {"stored_bytes", s.model.stored_bytes},
           {"kv_bytes_per_token", s.model.kv_bytes_per_token()},
           {"context", s.context},
           {"critical_batch", plan::critical_decode_batch(s.cluster.device, s.weights)},
           {"tp", json::array()}};
  for (const Choice& c : choices) {
    out["tp"].push_back(choice_json(c));
    if (c.has_room && !first) first = &c;
    if (c.serving.output_tokens_per_s == 0) continue;
    if (!cheapest || c.serving.dollars_per_million_output < cheapest->serving.dollars_per_million_output) cheapest = &c;
  }
  if (cheapest) out["cheapest_tp"] = cheapest->tp;
  if (!o.json) {
    fmt::print("{}: {} stored as {}, {} of KV cache per token; critical decode batch {:.0f}\n\n", o.model,
               base::format_bytes(s.model.stored_bytes), s.weights.name,
               base::format_bytes(s.model.kv_bytes_per_token()),
               plan::critical_decode_batch(s.cluster.device, s.weights));
    print_choices(s, o, choices);
    print_batch_note(o, choices);
    if (!first) {
      fmt::print("No width fits: take a device with more memory, more devices, or fewer bits per weight (below).\n");
    } else if (cheapest) {
      fmt::print(
          "Cheapest per token: tp {}. 'Bound' is the whole bandwidth; the other figures assume {:.0f} % of it,\n"
          "{:.0f} us per layer beside the bytes and {:.0f} % of the peak.\n",
          cheapest->tp, 100 * s.typical.bandwidth, 1e6 * s.typical.layer_seconds, 100 * s.typical.compute);
    }
  }
  if (o.achieved != 0) print_at_bandwidth(o, s, out);
  print_formats(o, s, o.tp != 0 ? o.tp : first ? first->tp : choices.back().tp, out);
  if (o.json) return print_json(out);
  if (o.explain && cheapest) print_explanation(explain(o, s, *cheapest));
}

}  // namespace

void add_plan_inference(Command plan) {
  auto o = std::make_shared<InferenceOptions>();
  const Command c =
      plan.add_verb("inference", "prefill and decode bounds, sequences that fit, tp, quantization, cost per token");
  c.footer("Examples:\n  sinter plan inference llama-3-8b --gpus 2xH100");
  c.option("model", &o->model, "a model's name or folder").required();
  add_cluster_options(c, o->cluster, "H100");
  c.option("--weights", &o->weights, fmt::format("weight format: {}", fmt::join(plan::weight_format_names(), ", ")))
      .shows_default();
  c.option("--kv", &o->kv, fmt::format("format of the KV cache: {}", fmt::join(plan::kFormatNames, ", ")))
      .shows_default();
  c.option("--tp", &o->tp, "tensor parallel width (default: all that fit a node are compared)").at_least(1);
  c.option("--prompt", &o->prompt, "prompt tokens per request (default: 1024, or what the model's positions leave)")
      .at_least(1);
  c.option("--output", &o->output, "output tokens per request (default: 256, at most a quarter of the positions)")
      .at_least(1);
  c.option("--context", &o->context, "tokens of cache per sequence (default: prompt + output)").at_least(1);
  c.option("--batch", &o->batch, "sequences at once (default: what fits, at most 256)").at_least(1);
  c.option("--achieved", &o->achieved, "memory bandwidth reached, GB/s (default: a typical share)").positive();
  c.option("--mbu", &o->mbu, "share of the memory bandwidth reached").positive();
  c.option("--mfu", &o->mfu, "share of the peak reached in prefill").positive();
  c.flag("--json", &o->json, "print JSON");
  c.flag("--explain", &o->explain, "print each formula with the numbers put in");
  c.on_run([o] { run_inference(*o); });
}

}  // namespace sinter::cli
