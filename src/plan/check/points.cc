#include "plan/check/points.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "plan/memory.h"
#include "plan/models.h"
#include "plan/training_plan.h"

namespace sinter::plan {
namespace {

using nlohmann::json;

double number_at(const json& object, const char* key, double otherwise) {
  auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : otherwise;
}
int64_t whole_at(const json& object, const char* key, int64_t otherwise) {
  double value = number_at(object, key, static_cast<double>(otherwise));
  return std::abs(value) < 1e15 ? static_cast<int64_t>(value) : -1;
}
std::string text_at(const json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}
bool flag_at(const json& object, const char* key, bool otherwise) {
  auto found = object.find(key);
  return found != object.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}
// A count of ranks, sequences or tokens. One that cannot be leaves a problem in the row, and 1 to go on with.
int64_t size_at(const json& object, const char* key, int64_t otherwise, CheckRow& row) {
  double value = number_at(object, key, static_cast<double>(otherwise));
  if (value >= 1 && value <= 1e7) return static_cast<int64_t>(value);
  row.problem = fmt::format("{} is {:g}", key, value);
  return 1;
}
bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

spec::ModelSpec llama_spec(int64_t layers, int64_t hidden, int64_t heads, int64_t kv_heads, int64_t ffn, int64_t vocab,
                           bool tied) {
  spec::ModelSpec model;
  model.family = spec::Family::llama;
  model.num_layers = layers;
  model.hidden = hidden;
  model.num_heads = heads;
  model.num_kv_heads = kv_heads;
  model.head_dim = hidden / heads;
  model.ffn = ffn;
  model.vocab_size = vocab;
  model.max_positions = 8192;
  model.tied_head = tied;
  model.rope.kind = spec::RopeKind::standard;
  return model;
}

void add_experts(spec::ModelSpec& model, int64_t experts, int64_t top_k, int64_t ffn) {
  model.moe.num_experts = experts;
  model.moe.experts_per_token = top_k;
  model.moe.ffn = ffn;
  model.sparse_layers.assign(static_cast<size_t>(model.num_layers), 1);
}

spec::ModelSpec spec_of(const json& m) {
  int64_t hidden = whole_at(m, "hidden", 0), heads = whole_at(m, "heads", 1);
  if (text_at(m, "arch") == "gpt" && !m.contains("kv_heads")) {
    return gpt_spec(whole_at(m, "layers", 0), hidden, heads, whole_at(m, "vocab", 51200), 2048);
  }
  // A source that says neither the family nor the MLP's width means the plain GPT of 2020.
  bool is_gpt = text_at(m, "arch") == "gpt" || !flag_at(m, "gated_mlp", m.contains("ffn"));
  spec::ModelSpec model =
      llama_spec(whole_at(m, "layers", 0), hidden, heads, whole_at(m, "kv_heads", heads),
                 whole_at(m, "ffn", 4 * hidden), whole_at(m, "vocab", 51200), flag_at(m, "tied_embeddings", is_gpt));
  model.head_dim = whole_at(m, "head_dim", hidden / heads);
  model.gated_mlp = flag_at(m, "gated_mlp", !is_gpt);
  model.learned_positions = flag_at(m, "learned_pos", false);
  if (is_gpt) {
    model.norm = spec::NormKind::layer;
    model.rope.kind = spec::RopeKind::none;
  }
  model.qkv_bias = model.out_bias = model.mlp_bias = flag_at(m, "bias", is_gpt);
  if (m.contains("experts")) add_experts(model, whole_at(m, "experts", 1), whole_at(m, "top_k", 1), model.ffn);
  return model;
}

// Multi-head latent attention with shared experts: not a family of ours, but its shape can be planned.
ModelShape latent_shape(const json& m) {
  spec::ModelSpec base = llama_spec(whole_at(m, "layers", 1), whole_at(m, "hidden", 1), whole_at(m, "heads", 1),
                                    whole_at(m, "heads", 1), whole_at(m, "ffn", 1), whole_at(m, "vocab", 1), false);
  base.head_dim = whole_at(m, "v_head", 128);
  add_experts(base, whole_at(m, "experts", 1), whole_at(m, "top_k", 1), whole_at(m, "moe_ffn", 1));
  // A model cut to a few layers keeps one dense layer, whatever the whole one has.
  bool is_cut = contains(text_at(m, "name"), "trunc");
  int64_t dense = std::min(is_cut ? 1 : whole_at(m, "dense_layers", 1), base.num_layers);
  for (int64_t layer = 0; layer < dense; ++layer) base.sparse_layers[static_cast<size_t>(layer)] = 0;
  ModelShape shape = make_model_shape(base);
  int64_t q_rank = whole_at(m, "q_lora", 0), kv_rank = whole_at(m, "kv_lora", 0), h = shape.hidden;
  int64_t nope = whole_at(m, "qk_nope", 128), rope = whole_at(m, "qk_rope", 64);
  shape.qk_dim = nope + rope;
  shape.shared_ffn = whole_at(m, "shared_experts", 0) * shape.moe_ffn;
  for (BlockShape& block : shape.kinds) {
    std::vector<Matmul> attention{{h, q_rank, Matmul::Cut::none, false},
                                  {q_rank, shape.qk_width(), Matmul::Cut::outputs, false},
                                  {h, kv_rank + rope, Matmul::Cut::none, false},
                                  {kv_rank, shape.num_heads * (nope + shape.v_dim), Matmul::Cut::outputs, false},
                                  {shape.v_width(), h, Matmul::Cut::inputs, false}};
    attention.insert(attention.end(), block.matmuls.begin() + 2, block.matmuls.end());
    block.matmuls = attention;
    if (block.is_sparse && shape.shared_ffn > 0) {
      block.matmuls.push_back({h, 2 * shape.shared_ffn, Matmul::Cut::outputs, false});
      block.matmuls.push_back({shape.shared_ffn, h, Matmul::Cut::inputs, false});
    }
    block.cut_parameters = block.whole_parameters = 0;
    for (const Matmul& mm : block.matmuls) {
      if (mm.is_expert) continue;
      (mm.cut == Matmul::Cut::none ? block.whole_parameters : block.cut_parameters) += mm.inputs * mm.outputs;
    }
    block.whole_parameters += 2 * h + q_rank + kv_rank;
  }
  return shape;
}

void read_model(const json& m, int64_t seq_len, CheckRow& row) {
  row.model_name = text_at(m, "name");
  if (contains(text_at(m, "arch"), "mla")) {
    for (const char* key :
         {"layers", "hidden", "heads", "ffn", "moe_ffn", "vocab", "experts", "top_k", "q_lora", "kv_lora"}) {
      const int64_t most = key == std::string_view("layers") ? 10000 : int64_t{1} << 24;
      SINTER_CHECK(whole_at(m, key, 0) > 0 && whole_at(m, key, 0) <= most, "the model's {} is {}", key,
                   whole_at(m, key, 0));
    }
    for (const char* key : {"qk_nope", "qk_rope", "v_head", "dense_layers", "shared_experts"}) {
      const int64_t value = whole_at(m, key, 1);
      SINTER_CHECK(value >= 0 && value <= 65536, "the model's {} is {}", key, value);
    }
    row.model = latent_shape(m);
  } else if (m.contains("layers") && m.contains("hidden") && m.contains("heads")) {
    for (auto [key, most] : {std::pair{"layers", 10000}, {"heads", 65536}, {"experts", 65536}}) {
      const int64_t value = whole_at(m, key, 1);
      SINTER_CHECK(value > 0 && value <= most, "the model's {} are {}; expected 1 to {}", key, value, most);
    }
    spec::ModelSpec model = spec_of(m);
    model.max_positions = std::max<int64_t>(1, seq_len);  // position tables are as long as the run's sequences
    spec::check_model_spec(model);
    row.model = make_model_shape(model);
    row.spec = model;
  } else if (std::optional<spec::ModelSpec> model = known_model(row.model_name)) {
    row.model = make_model_shape(*model);
    row.spec = model;
  } else {
    if (row.kind == "train" || row.kind == "layer_time" || row.kind == "finetune") {
      row.problem = fmt::format("the shape of model '{}' is not given", row.model_name);
    }
  }
}

// The source without its address and version, as the table of errors names it.
std::string short_source(const std::string& source) {
  static const std::vector<std::pair<const char*, const char*>> kNames{{"vTrain", "vTrain multi node"},
                                                                       {"nanotron Ultra-Scale", "nanotron sweep"},
                                                                       {"Ultra-Scale Playbook", "playbook"},
                                                                       {"SimuMax", "SimuMax"},
                                                                       {"Megatron-Bridge", "Megatron-Bridge"},
                                                                       {"dgxc", "dgxc-benchmarking"},
                                                                       {"Korthikanti", "Korthikanti 2022"},
                                                                       {"Narayanan", "Narayanan 2021"},
                                                                       {"MegaScale", "MegaScale"},
                                                                       {"tables.tex", "Megatron-LM 2020"},
                                                                       {"Megatron-LM README", "Megatron-LM README"},
                                                                       {"torchtitan", "torchtitan"},
                                                                       {"mosaicml", "MosaicML"},
                                                                       {"MT-NLG", "MT-NLG"},
                                                                       {"Llama 3 Herd", "Llama 3"},
                                                                       {"Nemotron", "Nemotron-4"},
                                                                       {"picotron", "picotron"},
                                                                       {"PaLM", "PaLM"},
                                                                       {"LLMCompass", "LLMCompass"},
                                                                       {"ml-engineering", "ml-engineering"},
                                                                       {"ZeRO", "ZeRO"},
                                                                       {"DeepSpeed", "DeepSpeed"},
                                                                       {"GPT-3", "GPT-3"},
                                                                       {"TensorRT-LLM", "TensorRT-LLM"},
                                                                       {"gpt-fast", "gpt-fast"},
                                                                       {"calm", "calm"},
                                                                       {"llama.cpp", "llama.cpp"},
                                                                       {"kipply", "kipply"},
                                                                       {"Chinchilla", "Chinchilla"},
                                                                       {"BLOOM", "run costs"},
                                                                       {"DeepSeek", "run costs"},
                                                                       {"LLaMA", "run costs"},
                                                                       {"Llama", "run costs"}};
  for (const auto& [part, name] : kNames) {
    if (contains(source, part)) return name;
  }
  return source.substr(0, source.find_first_of("(@,"));
}

std::string software_of(const std::string& source) {
  if (source == "MosaicML") return "fsdp";
  if (source == "torchtitan") return "fsdp-compiled";
  if (source == "nanotron sweep" || source == "playbook" || source == "picotron") return "nanotron";
  if (source == "vTrain multi node") return "megatron-deepspeed";
  if (source == "Korthikanti 2022" || source == "Narayanan 2021" || source == "Megatron-LM 2020" ||
      source == "MT-NLG" || source == "MegaScale") {
    return "megatron-2021";
  }
  if (source == "Megatron-Bridge") return "megatron-2025";
  return "megatron";
}

std::string format_of(const std::string& precision) {
  std::string lower;
  for (char c : precision) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (contains(lower, "fp4")) return "fp4";
  if (contains(lower, "fp8") || contains(lower, "float8")) return "fp8";
  if (contains(lower, "fp16")) return "fp16";
  return "bf16";
}

// Between nodes, bytes/s of one node in one direction, as the row's words say; 0 = not said.
double node_bandwidth_of(const std::string& words) {
  if (words.empty()) return 0;
  double bits = 0;
  if (contains(words, "x200") || contains(words, "1600")) bits = 1600e9;
  if (contains(words, "800 Gb")) bits = 800e9;
  if (contains(words, "x400") || contains(words, "3200") || contains(words, "400 Gb/s per GPU") ||
      contains(words, "400 Gb/s RoCE")) {
    bits = 3200e9;
  }
  return bits / 8;
}

void read_hardware(const json& point, const HardwareTable& hardware, CheckRow& row) {
  const json& h = point["hardware"];
  std::string name = text_at(h, "gpu");
  if (name.empty()) {
    if (row.problem.empty() && row.kind != "memory" && row.kind != "flops" && row.kind != "scaling_law") {
      row.problem = "no device is given";
    }
    return;
  }
  std::string plain = name.substr(0, name.find(" ("));
  if (contains(plain, "V100-SXM3")) plain = "V100-SXM2-32GB";
  if (contains(plain, "H100-96GB")) plain = "H100-SXM5-80GB";
  if (plain == "GB300" || plain == "B300") plain = "B300-SXM";
  if (contains(plain, "GB200")) plain = "GB200";
  if (plain == "TPUv4") plain = "TPU-v4";
  if (contains(plain, "GH200")) plain = "GH200-96GB";
  Cluster cluster;
  if (plain == "H800-SXM-80GB") plain = "H800-SXM";
  if (plain == "H100-SXM") plain = "H100-SXM5-80GB";
  try {
    cluster.device = hardware.device(plain);
  } catch (const base::Error& e) {
    double bandwidth = number_at(h, "hbm_gbs", 0);
    if (bandwidth == 0 || row.kind != "decode") {
      if (row.problem.empty()) row.problem = e.what();
      return;
    }
    cluster.device.name = plain;  // one sequence at a time is bound by the bandwidth, which the row gives
    cluster.device.flops[static_cast<size_t>(MatrixFormat::bf16)] = 1e13;
    cluster.device.per_node = 1;
  }
  if (double bandwidth = number_at(h, "hbm_gbs", 0); bandwidth > 0) cluster.device.bandwidth = bandwidth * 1e9;
  const json& network = h.contains("internode") ? h["internode"] : json();
  cluster.per_node = static_cast<int>(size_at(h, "gpus_per_node", std::max(1, cluster.device.per_node), row));
  std::string system = text_at(h, "system");
  if (contains(system, "GB200") || contains(system, "GB300")) cluster.per_node = 64;  // one NVLink domain of the rack
  cluster.num_devices = size_at(h, "n_gpus", 1, row);
  cluster.rails = std::max(1, cluster.device.rails * cluster.per_node / std::max(1, cluster.device.per_node));
  cluster.network = hardware.network(cluster.device.network.empty() ? "ndr-400" : cluster.device.network);
  double node = node_bandwidth_of(network.is_string() ? network.get<std::string>() : "");
  if (node > 0) cluster.network.bandwidth = node / cluster.rails;
  if (double hbm = number_at(h, "hbm_tbs", 0); hbm > 0) cluster.device.bandwidth = hbm * 1e12;
  if (contains(name, "power limited")) row.time_problem = "the device is limited to a power that is not given";
  row.peak_flops = number_at(h, "peak_bf16_tflops", number_at(h, "peak_fp16_tflops", 0)) * 1e12;
  if (row.format == "fp8" || row.format == "fp4") {
    row.peak_flops = number_at(h, "peak_fp8_tflops", cluster.device.peak(MatrixFormat::fp8) / 1e12) * 1e12;
  }
  if (contains(plain, "TPU") && row.kind == "train")
    row.time_problem = "the two-dimensional sharding of TPU pods is not planned";
  if (cluster.device.peak(MatrixFormat::bf16) == 0 && row.format == "bf16") row.format = "fp16";
  row.cluster = cluster;
}

void read_layout(const json& point, CheckRow& row) {
  const json& l = point["layout"];
  const json& b = point["batch"];
  for (const auto& [key, value] : l.items()) {
    if (value.is_number()) row.layout[key] = value.get<double>();
  }
  row.operation = text_at(l, "op");
  row.weight_format = text_at(l, "weight_dtype");
  row.kv_format = text_at(l, "kv_dtype");
  row.words = text_at(l, "offload");
  if (double largest = number_at(point["model"], "largest_layer_params", 0); largest > 0) {
    row.layout["largest_layer_params"] = largest;
  }
  if (double parameters = number_at(point["model"], "params_reported", 0); parameters > 0) {
    row.layout["params_reported"] = parameters;
  }
  spec::ParallelSpec& p = row.parallel;
  p.tp = size_at(l, "tp", 1, row);
  p.pp = size_at(l, "pp", 1, row);
  p.cp = size_at(l, "cp", 1, row);
  p.ep = size_at(l, "ep", 1, row);
  int64_t ranks = row.cluster ? row.cluster->num_devices : 1;
  int64_t dp = size_at(l, "dp", std::max<int64_t>(1, ranks / (p.tp * p.pp * p.cp)), row);
  p.zero = static_cast<int>(std::clamp<int64_t>(whole_at(l, "zero", 0), -1, 4));
  if (l.contains("zero") && l["zero"].is_string()) p.zero = 2;
  if (flag_at(l, "dist_optimizer", false)) p.zero = std::max(p.zero, 1);
  if (row.source == "dgxc-benchmarking" || row.source == "MegaScale") p.zero = std::max(p.zero, 1);
  if (number_at(l, "fsdp", 0) > 0) p.zero = 3;
  if (text_at(l, "fsdp") == "SHARD_GRAD_OP") p.zero = 2;
  (p.zero > 0 ? p.shard : p.replica) = dp;
  int64_t interleave = size_at(l, "vp", 1, row);
  row.interleave_given = l.contains("vp") || !(flag_at(l, "interleaved", false) || row.source == "Llama 3");
  if (interleave > 1 && p.pp > 1) {
    p.interleave = interleave;
    p.schedule = spec::PipelineKind::interleaved;
  }
  std::string recompute = text_at(l, "recompute");
  if (contains(recompute, "full")) p.recompute = spec::Recompute::full;
  if (contains(recompute, "selective")) p.recompute = spec::Recompute::selective;
  p.sequence_parallel = p.tp > 1 && flag_at(l, "sequence_parallel",
                                            row.software != "megatron-2021" && row.software != "megatron-deepspeed");
  p.seq_len = size_at(point, "seq_len", 2048, row);
  row.micro_batch_given = b.contains("micro");
  p.micro_batch = size_at(b, "micro", 1, row);
  int64_t micro_batches = size_at(b, "grad_accum", 1, row);
  if (b.contains("local_batch")) micro_batches = size_at(b, "local_batch", 1, row) / p.micro_batch;
  bool says_batch = b.contains("global_seqs") || b.contains("grad_accum") || b.contains("local_batch");
  if (!says_batch && p.pp > 1) row.time_problem = "a pipeline's batch is not given";
  p.global_batch = b.contains("global_seqs") ? size_at(b, "global_seqs", 1, row) : dp * p.micro_batch * micro_batches;
}

CheckRow read_point(const json& point, const HardwareTable& hardware) {
  CheckRow row;
  row.id = text_at(point, "id");
  row.kind = text_at(point, "kind");
  std::string source = text_at(point, "source");
  row.source = short_source(source);
  row.software = software_of(row.source);
  row.convention = text_at(point, "flops_convention");
  for (const auto& [key, value] : point["measured"].items()) {
    if (value.is_number()) row.measured[key] = value.get<double>();
  }
  row.format = format_of(text_at(point["layout"], "precision"));
  try {
    read_model(point["model"], whole_at(point, "seq_len", 2048), row);
  } catch (const base::Error& e) {
    row.problem = e.what();
  }
  read_hardware(point, hardware, row);
  read_layout(point, row);
  const spec::ParallelSpec& p = row.parallel;
  if (p.zero < 0 || p.zero > 3) row.problem = fmt::format("ZeRO stage {} does not exist", p.zero);
  if (contains(source, "MegaScale (NSDI24) Table 2, MegaScale")) row.software = "megatron";
  if (auto both = row.measured.find("mfu_pct_megascale"); both != row.measured.end()) {  // two programs in one row
    row.measured["mfu_pct"] = both->second;
    row.software = "megatron";
  }
  if (row.source == "Narayanan 2021" && row.parallel.zero == 3) row.software = "deepspeed-zero3";
  if (row.model && (row.software == "megatron-2021" || row.software == "megatron-deepspeed")) {
    row.model->has_dropout = true;  // GPT as trained in 2020-2022
  }
  if (row.kind == "finetune") {
    row.kind = "train";
    if (contains(text_at(point, "mode") + text_at(point["layout"], "title"), "LORA") ||
        contains(text_at(point, "mode"), "LoRA")) {
      row.software = "megatron-lora";
      row.flops_scale = 2.0 / 3;
    }
  }
  if (row.software == "megatron-2021" && row.source == "MegaScale" && !row.interleave_given) row.layout["vp"] = 6;
  if (row.model && row.source == "Megatron-Bridge" && row.model_name == "deepseek-v3") {
    row.model->num_mtp = contains(text_at(point["layout"], "variant"), "w/o MTP") ? 0 : 1;
  }
  if (row.kind == "train" && row.problem.empty() && row.model && row.cluster && !point["layout"].contains("dp") &&
      !point["layout"].contains("tp")) {
    row.layout_given = false;
    if (!point["batch"].contains("global_seqs")) {
      row.parallel.global_batch = usual_global_batch(static_cast<double>(row.model->active_parameters()),
                                                     row.parallel.seq_len, row.cluster->num_devices);
    }
    if (!row.spec) row.problem = "neither the layout nor a model that can be searched is given";
  }
  if (row.model_name == "vtrain-gpt" || row.source == "nanotron sweep") {
    row.group = sweep_group(row);
  }
  if (row.source == "nanotron sweep" && row.problem.empty()) infer_gathering(row);
  return row;
}

}  // namespace

std::string sweep_group(const CheckRow& row) {
  return fmt::format("{} L{} h{} gpus {} length {} batch {}", contains(row.source, "vTrain") ? "vTrain" : row.source,
                     row.model ? row.model->num_layers : 0, row.model ? row.model->hidden : 0,
                     row.cluster ? row.cluster->num_devices : 0, row.parallel.seq_len, row.parallel.global_batch);
}

spec::ModelSpec gpt_spec(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t positions) {
  spec::ModelSpec model;
  model.family = spec::Family::gpt2;
  model.num_layers = layers;
  model.hidden = hidden;
  model.num_heads = model.num_kv_heads = heads;
  model.head_dim = hidden / std::max<int64_t>(1, heads);
  model.ffn = 4 * hidden;
  model.vocab_size = vocab;
  model.max_positions = positions;
  model.norm = spec::NormKind::layer;
  model.gated_mlp = false;
  model.learned_positions = true;
  model.tied_head = true;
  model.qkv_bias = model.out_bias = model.mlp_bias = true;
  model.dropout = {0.1f, 0.1f, 0.1f};
  return model;
}

std::optional<spec::ModelSpec> known_model(const std::string& name) {
  if (name == "mixtral-8x7B") {
    spec::ModelSpec model = llama_spec(32, 4096, 32, 8, 14336, 32000, false);
    model.family = spec::Family::mixtral;
    add_experts(model, 8, 2, 14336);
    return model;
  }
  if (name == "nanotron-1.34B") return llama_spec(16, 2048, 32, 32, 8192, 131072, true);
  if (name == "nanotron-3.57B") return llama_spec(28, 3072, 32, 32, 8192, 131072, true);
  if (name == "nanotron-8.86B") return llama_spec(32, 4096, 32, 32, 14336, 131072, false);
  if (name == "nanotron-80B") return llama_spec(80, 8192, 64, 64, 28672, 131072, false);
  if (name == "Qwen3_30B_a3B" || name == "Qwen3_235B_a22B") {
    bool large = name == "Qwen3_235B_a22B";
    spec::ModelSpec model =
        large ? llama_spec(94, 4096, 64, 4, 12288, 151936, false) : llama_spec(48, 2048, 32, 4, 6144, 151936, false);
    model.family = spec::Family::qwen3_moe;
    model.head_dim = 128;
    model.qk_norm = true;
    add_experts(model, 128, 8, large ? 1536 : 768);
    return model;
  }
  if (name == "GPT OSS 120B") {
    spec::ModelSpec model = llama_spec(36, 2880, 64, 8, 2880, 201088, false);
    model.head_dim = 64;
    model.qkv_bias = model.out_bias = true;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) model.window.push_back(layer % 2 == 0 ? 128 : 0);
    add_experts(model, 128, 4, 2880);
    return model;
  }
  if (name == "nemotron4-15B") {
    spec::ModelSpec model = llama_spec(32, 6144, 48, 8, 24576, 256000, false);
    model.gated_mlp = false;
    model.activation = spec::Activation::relu;
    return model;
  }
  if (const ModelPreset* preset = find_preset(name)) return preset->spec;
  return std::nullopt;
}

std::vector<CheckRow> load_points(const std::string& text, const std::string& path, const HardwareTable& hardware) {
  json document = base::parse_json(text, path);
  const json& points = document.is_array() ? document : document["points"];
  SINTER_CHECK(points.is_array(), "{}: expected a list of points, or an object with a list \"points\"", path);
  std::vector<CheckRow> rows;
  for (size_t i = 0; i < points.size(); ++i) {
    json point = points[i];
    if (!point.is_object()) {
      rows.emplace_back();
      rows.back().id = fmt::format("{}:{}", path, i);
      rows.back().problem = "the point is not an object";
      continue;
    }
    for (const char* key : {"model", "hardware", "layout", "batch", "measured"}) {
      if (!point.contains(key) || !point[key].is_object()) point[key] = json::object();
    }
    rows.push_back(read_point(point, hardware));
    if (rows.back().id.empty()) rows.back().id = fmt::format("{}:{}", path, i);
  }
  return rows;
}

}  // namespace sinter::plan
