#include "spec/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/text.h"
#include "spec/families.h"

namespace sinter::spec {
namespace {

using base::fail;
using nlohmann::json;

// Typed access with the path and key in every error; null counts as absent, as in transformers.
class Reader {
 public:
  Reader(const json& object, std::string origin) : object_(object), origin_(std::move(origin)) {
    SINTER_CHECK(object.is_object(), "'{}': expected a JSON object", origin_);
  }
  bool has(const char* key) const { return object_.contains(key) && !object_[key].is_null(); }
  const json& at(const char* key) const {
    SINTER_CHECK(has(key), "'{}': key '{}' is missing", origin_, key);
    return object_[key];
  }
  int64_t integer(const char* key) const {
    const json& v = at(key);
    SINTER_CHECK(v.is_number_integer() || (v.is_number() && std::floor(v.get<double>()) == v.get<double>()),
                 "'{}': key '{}' is {}; expected a whole number", origin_, key, v.dump());
    constexpr double kMost = 9.2e18;  // what 64 bits hold; sizes beyond reason are refused where they are used
    SINTER_CHECK(v.is_number_integer() || std::abs(v.get<double>()) < kMost,
                 "'{}': key '{}' is {}; expected a whole number of at most {:g}", origin_, key, v.dump(), kMost);
    return v.get<int64_t>();
  }
  int64_t integer(const char* key, int64_t otherwise) const { return has(key) ? integer(key) : otherwise; }
  double number(const char* key) const {
    const json& v = at(key);
    SINTER_CHECK(v.is_number(), "'{}': key '{}' is {}; expected a number", origin_, key, v.dump());
    return v.get<double>();
  }
  double number(const char* key, double otherwise) const { return has(key) ? number(key) : otherwise; }
  bool boolean(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    const json& v = object_[key];
    SINTER_CHECK(v.is_boolean(), "'{}': key '{}' is {}; expected true or false", origin_, key, v.dump());
    return v.get<bool>();
  }
  std::string text(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    const json& v = object_[key];
    const bool is_text = v.is_string() && v.get_ref<const std::string&>().find('\0') == std::string::npos;
    SINTER_CHECK(is_text, "'{}': key '{}' is {}; expected a string", origin_, key, v.dump());
    return v.get<std::string>();
  }
  // For keys whose only supported value is the default.
  void refuse_unless(const char* key, const json& supported) const {
    if (has(key) && object_[key] != supported) {
      fail("'{}': key '{}' is {}, which would change the model's answers and is not supported (only {})", origin_, key,
           object_[key].dump(), supported.dump());
    }
  }
  const std::string& origin() const { return origin_; }
  const json& object() const { return object_; }

 private:
  const json& object_;
  std::string origin_;
};

Activation parse_activation(const Reader& r, const char* key, const char* otherwise) {
  std::string name = r.text(key, otherwise);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "relu") return Activation::relu;
  fail("'{}': key '{}' is '{}'; supported: silu, gelu, gelu_new, gelu_pytorch_tanh, relu", r.origin(), key, name);
}

constexpr const char* kOriginalPositions = "original_max_position_embeddings";

// Among the RoPE's own keys, or beside them in the config; `otherwise` where it stands in neither.
int64_t find_original_positions(const Reader& config, const Reader& rope, int64_t otherwise) {
  const int64_t inner = rope.integer(kOriginalPositions, config.integer(kOriginalPositions, otherwise));
  const int64_t outer = config.integer(kOriginalPositions, inner);
  SINTER_CHECK(inner == outer, "'{}': key '{}' is {} and {} in one file; keep the one that is meant", rope.origin(),
               kOriginalPositions, inner, outer);
  return inner;
}

RopeSpec parse_rope(const Reader& r, int64_t max_positions, double default_theta) {
  // transformers 5 writes rope_parameters; earlier versions rope_theta and rope_scaling.
  RopeSpec rope;
  rope.kind = RopeKind::standard;
  rope.theta = r.number("rope_theta", default_theta);
  rope.original_max_positions = max_positions;
  const char* key = r.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  r.refuse_unless("partial_rotary_factor", 1.0);
  if (!r.has(key)) return rope;
  SINTER_CHECK(!r.has("rope_parameters") || !r.has("rope_scaling") || r.at("rope_parameters") == r.at("rope_scaling"),
               "'{}': keys 'rope_parameters' ({}) and 'rope_scaling' ({}) differ; keep the one that is meant",
               r.origin(), r.at("rope_parameters").dump(), r.at("rope_scaling").dump());
  Reader s(r.at(key), r.origin() + ": " + key);
  for (const auto& [name, value] : s.object().items()) {
    SINTER_CHECK(!value.is_object(), "'{}': '{}' has parameters of its own; one RoPE for all layers is supported",
                 s.origin(), name);
  }
  SINTER_CHECK(!r.has("rope_theta") || !s.has("rope_theta") || rope.theta == s.number("rope_theta", 0),
               "'{}': keys 'rope_theta' ({}) and '{}.rope_theta' ({}) differ; keep the one that is meant", r.origin(),
               rope.theta, key, s.number("rope_theta", 0));
  rope.theta = s.number("rope_theta", rope.theta);
  s.refuse_unless("partial_rotary_factor", 1.0);
  std::string type = s.text("rope_type", s.text("type", "default"));
  if (type == "default") return rope;
  static const std::vector<std::string> kKnown{"linear", "dynamic", "llama3", "yarn"};
  SINTER_CHECK(std::find(kKnown.begin(), kKnown.end(), type) != kKnown.end(),
               "'{}': rope_type '{}' is not supported; known: default, {}", s.origin(), type, fmt::join(kKnown, ", "));
  rope.factor = s.number("factor");
  SINTER_CHECK(rope.factor >= 1.0, "'{}': RoPE factor is {}; expected at least 1", s.origin(), rope.factor);
  rope.original_max_positions = find_original_positions(r, s, max_positions);
  if (type == "linear") {
    rope.kind = RopeKind::linear;
  } else if (type == "dynamic") {
    rope.kind = RopeKind::dynamic;
    rope.original_max_positions = max_positions;  // transformers takes no other for this kind, whatever the file says
  } else if (type == "llama3") {
    rope.kind = RopeKind::llama3;
    rope.low_freq_factor = s.number("low_freq_factor");
    rope.high_freq_factor = s.number("high_freq_factor");
    SINTER_CHECK(r.has(kOriginalPositions) || s.has(kOriginalPositions), "'{}': key '{}' is missing", s.origin(),
                 kOriginalPositions);
  } else {  // yarn
    rope.kind = RopeKind::yarn;
    rope.beta_fast = s.number("beta_fast", 32.0);
    rope.beta_slow = s.number("beta_slow", 1.0);
    rope.mscale = s.number("mscale", 0.0);
    rope.mscale_all_dim = s.number("mscale_all_dim", 0.0);
    rope.attention_factor = s.number("attention_factor", 0.0);
    rope.truncate = s.boolean("truncate", true);
  }
  return rope;
}

void parse_eos(const Reader& r, ModelSpec& spec) {
  if (!r.has("eos_token_id")) return;
  const json& eos = r.at("eos_token_id");
  for (const json& id : eos.is_array() ? eos : json::array({eos})) {
    SINTER_CHECK(id.is_number_integer(), "'{}': key 'eos_token_id' holds {}; expected numbers", r.origin(), id.dump());
    const auto token = id.get<int64_t>();
    if (std::find(spec.eos_tokens.begin(), spec.eos_tokens.end(), token) == spec.eos_tokens.end())
      spec.eos_tokens.push_back(token);
  }
}

void parse_tokens(const Reader& r, ModelSpec& spec) {
  spec.bos_token = r.integer("bos_token_id", -1);
  spec.pad_token = r.integer("pad_token_id", -1);
  parse_eos(r, spec);
}

ModelSpec parse_gpt2(const Reader& r) {
  ModelSpec spec;
  spec.family = Family::gpt2;
  spec.vocab_size = r.integer("vocab_size");
  spec.hidden = r.integer("n_embd");
  spec.num_layers = r.integer("n_layer");
  spec.num_heads = spec.num_kv_heads = r.integer("n_head");
  SINTER_CHECK(spec.num_heads > 0 && spec.hidden % spec.num_heads == 0,
               "'{}': n_embd {} is not a multiple of n_head {}", r.origin(), spec.hidden, spec.num_heads);
  spec.head_dim = spec.hidden / spec.num_heads;
  spec.ffn = r.integer("n_inner", 4 * spec.hidden);
  spec.max_positions = r.integer("n_positions", r.integer("n_ctx", 1024));
  spec.norm = NormKind::layer;
  spec.norm_eps = static_cast<float>(r.number("layer_norm_epsilon", 1e-5));
  spec.activation = parse_activation(r, "activation_function", "gelu_new");
  spec.gated_mlp = false;
  spec.learned_positions = true;
  spec.tied_head = r.boolean("tie_word_embeddings", true);
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  if (!r.boolean("scale_attn_weights", true)) spec.attention_scale = 1.0f;
  spec.scale_by_layer = r.boolean("scale_attn_by_inverse_layer_idx", false);
  r.refuse_unless("add_cross_attention", false);
  spec.dropout = {static_cast<float>(r.number("embd_pdrop", 0.1)), static_cast<float>(r.number("resid_pdrop", 0.1)),
                  static_cast<float>(r.number("attn_pdrop", 0.1))};
  return spec;
}

// Which layers slide: `layer_types` where given, else the family's rule.
void parse_window(const Reader& r, ModelSpec& spec, bool is_qwen) {
  // null is no window; a key left out is the family's own.
  const int64_t usual = r.object().contains("sliding_window") ? 0 : info_of(spec.family).window;
  bool slides = (r.has("sliding_window") || usual > 0) && (!is_qwen || r.boolean("use_sliding_window", false));
  constexpr int64_t kEndless = int64_t{1} << 40;  // leaves room to add to it
  int64_t window = slides ? std::min(r.integer("sliding_window", usual), kEndless) : 0;
  SINTER_CHECK(!slides || window > 0, "'{}': sliding_window is {}; expected a positive number", r.origin(), window);
  if (r.has("layer_types")) {
    const json& types = r.at("layer_types");
    SINTER_CHECK(types.is_array() && static_cast<int64_t>(types.size()) == spec.num_layers,
                 "'{}': layer_types lists {} layers; expected num_hidden_layers = {}", r.origin(), types.size(),
                 spec.num_layers);
    for (const json& type : types) {
      std::string name = type.is_string() ? type.get<std::string>() : type.dump();
      SINTER_CHECK(name == "full_attention" || name == "sliding_attention",
                   "'{}': layer type '{}' is not supported; known: full_attention, sliding_attention", r.origin(),
                   name);
      SINTER_CHECK(name == "full_attention" || slides, "'{}': a sliding_attention layer but no sliding_window in use",
                   r.origin());
      spec.window.push_back(name == "full_attention" ? 0 : window);
    }
  } else if (slides) {
    // Of the Qwen families, that with experts has no max_window_layers: all its layers slide.
    const bool has_full_layers = is_qwen && spec.family != Family::qwen3_moe;
    int64_t first = has_full_layers ? r.integer("max_window_layers", 28) : 0;
    for (int64_t l = 0; l < spec.num_layers; ++l) spec.window.push_back(l >= first ? window : 0);
  }
}

void parse_moe(const Reader& r, ModelSpec& spec) {
  const bool is_mixtral = spec.family == Family::mixtral;
  spec.moe.num_experts = r.has("num_local_experts") ? r.integer("num_local_experts") : r.integer("num_experts");
  spec.moe.experts_per_token = r.integer("num_experts_per_tok", is_mixtral ? 2 : 8);
  spec.moe.ffn = r.integer(is_mixtral ? "intermediate_size" : "moe_intermediate_size");
  spec.moe.norm_topk_prob = is_mixtral || r.boolean("norm_topk_prob", false);
  spec.moe.balance_loss = static_cast<float>(r.number("router_aux_loss_coef", 0.001));
  r.refuse_unless("router_jitter_noise", 0.0);
  spec.sparse_layers.assign(static_cast<size_t>(std::max<int64_t>(spec.num_layers, 0)), 1);
  if (is_mixtral) return;
  int64_t step = r.integer("decoder_sparse_step", 1);
  SINTER_CHECK(step >= 1, "'{}': decoder_sparse_step is {}; expected at least 1", r.origin(), step);
  for (int64_t l = 0; l < spec.num_layers; ++l) {
    if ((l + 1) % step != 0) spec.sparse_layers[static_cast<size_t>(l)] = 0;
  }
  if (r.has("mlp_only_layers")) {
    for (const json& layer : r.at("mlp_only_layers")) {
      SINTER_CHECK(layer.is_number_integer(), "'{}': mlp_only_layers holds {}", r.origin(), layer.dump());
      auto l = layer.get<int64_t>();
      if (l >= 0 && l < spec.num_layers) spec.sparse_layers[static_cast<size_t>(l)] = 0;
    }
  }
}

ModelSpec parse_llama_like(const Reader& r, Family family) {
  ModelSpec spec;
  spec.family = family;
  const FamilyInfo& defaults = info_of(family);
  const bool is_qwen = defaults.is_qwen;
  spec.vocab_size = r.integer("vocab_size");
  spec.hidden = r.integer("hidden_size");
  spec.num_layers = r.integer("num_hidden_layers");
  SINTER_CHECK(spec.num_layers >= 0 && spec.num_layers <= 100000,
               "'{}': num_hidden_layers is {}; expected 0 to 100,000", r.origin(), spec.num_layers);
  spec.num_heads = r.integer("num_attention_heads");
  const bool has_usual_kv_heads = defaults.kv_heads > 0 && !r.object().contains("num_key_value_heads");
  spec.num_kv_heads = r.integer("num_key_value_heads", has_usual_kv_heads ? defaults.kv_heads : spec.num_heads);
  SINTER_CHECK(spec.num_heads > 0, "'{}': num_attention_heads is {}; expected 1 or more", r.origin(), spec.num_heads);
  SINTER_CHECK(r.has("head_dim") || spec.hidden % spec.num_heads == 0,
               "'{}': hidden_size {} is not a multiple of num_attention_heads {} and head_dim is not given", r.origin(),
               spec.hidden, spec.num_heads);
  // Qwen3's own default is 128 whatever the width; the others divide the width by the heads.
  spec.head_dim = r.integer("head_dim", family == Family::qwen3 ? 128 : spec.hidden / spec.num_heads);
  spec.ffn = r.integer("intermediate_size");
  spec.max_positions = r.integer("max_position_embeddings", defaults.max_positions);
  spec.norm_eps = static_cast<float>(r.number("rms_norm_eps", defaults.norm_eps));
  spec.activation = parse_activation(r, "hidden_act", "silu");
  spec.tied_head = r.boolean("tie_word_embeddings", false);
  spec.rope = parse_rope(r, spec.max_positions, defaults.rope_theta);
  if (family == Family::llama) {
    spec.qkv_bias = spec.out_bias = r.boolean("attention_bias", false);
    spec.mlp_bias = r.boolean("mlp_bias", false);
  } else if (family == Family::qwen2) {
    spec.qkv_bias = true;
  } else if (is_qwen) {
    spec.qkv_bias = spec.out_bias = r.boolean("attention_bias", false);
    spec.qk_norm = true;
  }
  if (family != Family::llama) parse_window(r, spec, is_qwen);
  if (family == Family::mixtral || family == Family::qwen3_moe) parse_moe(r, spec);
  spec.dropout.attention = static_cast<float>(r.number("attention_dropout", 0.0));
  return spec;
}

const FamilyInfo& find_family(const Reader& r) {
  std::string name, model_type = r.text("model_type", "");
  if (r.has("architectures") && r.at("architectures").is_array() && !r.at("architectures").empty()) {
    const json& first = r.at("architectures")[0];
    if (first.is_string()) name = first.get<std::string>();
  }
  for (const FamilyInfo& family : families()) {
    if (name == family.hf_architecture || (name.empty() && model_type == family.hf_model_type)) return family;
  }
  std::string known;
  for (const FamilyInfo& family : families()) known += std::string(known.empty() ? "" : ", ") + family.hf_architecture;
  fail("'{}': architecture '{}' (model_type '{}') is not known; known: {}", r.origin(), name, model_type, known);
}

}  // namespace

ModelSpec parse_hf_config(const json& config, const std::string& origin) {
  Reader r(config, origin);
  const Family family = find_family(r).family;
  r.refuse_unless("quantization_config", nullptr);
  ModelSpec spec = family == Family::gpt2 ? parse_gpt2(r) : parse_llama_like(r, family);
  spec.mtp_heads = r.integer("sinter_mtp_heads", 0);
  spec.ffn = r.integer("sinter_mtp_intermediate_size", spec.ffn);
  spec.init_std = static_cast<float>(r.number("initializer_range", 0.02));
  parse_tokens(r, spec);
  try {
    check_model_spec(spec);
  } catch (const base::Error& e) {
    fail("'{}': {}", origin, e.what());
  }
  return spec;
}

void add_generation_config(const json& config, const std::string& origin, ModelSpec& spec) {
  parse_eos(Reader(config, origin), spec);
}

ModelSpec load_hf_config(const std::string& path) { return parse_hf_config(base::load_json(path), path); }

namespace {

const char* activation_name(Activation activation, bool is_gpt2) {
  switch (activation) {
    case Activation::silu:
      return "silu";
    case Activation::gelu:
      return "gelu";
    case Activation::gelu_tanh:
      return is_gpt2 ? "gelu_new" : "gelu_pytorch_tanh";
    case Activation::relu:
      return "relu";
  }
  return "silu";
}

json rope_json(const RopeSpec& rope) {
  SINTER_CHECK(rope.divisors.empty(),
               "a config.json cannot say this model's RoPE: a list of {} divisors that is none of Llama 3's scalings",
               rope.divisors.size());
  json j{{"rope_theta", rope.theta}};
  static constexpr const char* kNames[] = {"default", "default", "linear", "dynamic", "llama3", "yarn"};
  j["rope_type"] = kNames[static_cast<int>(rope.kind)];
  if (rope.kind == RopeKind::standard || rope.kind == RopeKind::none) return j;
  j["factor"] = rope.factor;
  if (rope.kind == RopeKind::llama3) {
    j["low_freq_factor"] = rope.low_freq_factor;
    j["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.kind == RopeKind::llama3 || rope.kind == RopeKind::yarn) {
    j["original_max_position_embeddings"] = rope.original_max_positions;
  }
  if (rope.kind == RopeKind::yarn) {
    j["beta_fast"] = rope.beta_fast;
    j["beta_slow"] = rope.beta_slow;
    if (rope.mscale != 0) j["mscale"] = rope.mscale;
    if (rope.mscale_all_dim != 0) j["mscale_all_dim"] = rope.mscale_all_dim;
    if (rope.attention_factor != 0) j["attention_factor"] = rope.attention_factor;
    if (!rope.truncate) j["truncate"] = false;
  }
  return j;
}

// The number that a person would have written: 1e-05, not 9.999999747378752e-06. Both are the same float.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

json gpt2_json(const ModelSpec& s) {
  json j{{"n_embd", s.hidden},
         {"n_layer", s.num_layers},
         {"n_head", s.num_heads},
         {"n_inner", s.ffn},
         {"n_positions", s.max_positions},
         {"n_ctx", s.max_positions},
         {"layer_norm_epsilon", shortest(s.norm_eps)},
         {"activation_function", activation_name(s.activation, true)},
         {"embd_pdrop", shortest(s.dropout.embedding)},
         {"resid_pdrop", shortest(s.dropout.residual)},
         {"attn_pdrop", shortest(s.dropout.attention)}};
  if (s.attention_scale == 1.0f) j["scale_attn_weights"] = false;
  if (s.scale_by_layer) j["scale_attn_by_inverse_layer_idx"] = true;
  return j;
}

json llama_like_json(const ModelSpec& s) {
  json j{{"hidden_size", s.hidden},
         {"num_hidden_layers", s.num_layers},
         {"num_attention_heads", s.num_heads},
         {"num_key_value_heads", s.num_kv_heads},
         {"head_dim", s.head_dim},
         {"intermediate_size", s.ffn},
         {"max_position_embeddings", s.max_positions},
         {"rms_norm_eps", shortest(s.norm_eps)},
         {"hidden_act", activation_name(s.activation, false)},
         {"attention_dropout", shortest(s.dropout.attention)}};
  j["rope_parameters"] = rope_json(s.rope);
  j["rope_theta"] = s.rope.theta;  // readers older than transformers 5 look here, and at rope_scaling
  if (s.rope.kind != RopeKind::standard) j["rope_scaling"] = rope_json(s.rope);
  if (s.family == Family::llama) j["mlp_bias"] = s.mlp_bias;
  if (s.family != Family::qwen2) j["attention_bias"] = s.out_bias;
  int64_t window = 0;
  json types = json::array();
  for (int64_t l = 0; l < s.num_layers; ++l) {
    window = std::max(window, s.window_of(l));
    types.push_back(s.window_of(l) ? "sliding_attention" : "full_attention");
  }
  if (s.family != Family::llama) j["sliding_window"] = window ? json(window) : json(nullptr);
  if (s.family == Family::qwen2 || s.family == Family::qwen3 || s.family == Family::qwen3_moe) {
    j["use_sliding_window"] = window > 0;
    if (s.family != Family::qwen3_moe) j["layer_types"] = types;
  }
  if (s.moe.num_experts > 0) {
    const bool is_mixtral = s.family == Family::mixtral;
    j[is_mixtral ? "num_local_experts" : "num_experts"] = s.moe.num_experts;
    j["num_experts_per_tok"] = s.moe.experts_per_token;
    j["router_aux_loss_coef"] = s.moe.balance_loss;
    if (is_mixtral) {
      j["intermediate_size"] = s.moe.ffn;
    } else {
      j["moe_intermediate_size"] = s.moe.ffn;
      j["norm_topk_prob"] = s.moe.norm_topk_prob;
      j["decoder_sparse_step"] = 1;
      j["mlp_only_layers"] = json::array();
      for (int64_t l = 0; l < s.num_layers; ++l) {
        if (!s.is_sparse(l)) j["mlp_only_layers"].push_back(l);
      }
    }
  }
  return j;
}

}  // namespace

json make_hf_config(const ModelSpec& s, const std::string& dtype) {
  json j = s.family == Family::gpt2 ? gpt2_json(s) : llama_like_json(s);
  j["architectures"] = {info_of(s.family).hf_architecture};
  j["model_type"] = info_of(s.family).hf_model_type;
  j["vocab_size"] = s.vocab_size;
  j["tie_word_embeddings"] = s.tied_head;
  j["initializer_range"] = shortest(s.init_std);
  j["dtype"] = j["torch_dtype"] = dtype;
  j["use_cache"] = true;
  if (s.mtp_heads > 0) j["sinter_mtp_heads"] = s.mtp_heads;
  // Mixtral's intermediate_size is an expert's; the dense MLPs of its extra heads have a width of their own.
  if (s.mtp_heads > 0 && j.contains("intermediate_size") && j["intermediate_size"] != s.ffn)
    j["sinter_mtp_intermediate_size"] = s.ffn;
  if (s.bos_token >= 0) j["bos_token_id"] = s.bos_token;
  if (s.pad_token >= 0) j["pad_token_id"] = s.pad_token;
  if (s.eos_tokens.size() == 1) j["eos_token_id"] = s.eos_tokens[0];
  if (s.eos_tokens.size() > 1) j["eos_token_id"] = s.eos_tokens;
  return j;
}

}  // namespace sinter::spec
