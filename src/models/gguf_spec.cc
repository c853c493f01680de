#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "models/gguf.h"
#include "spec/families.h"
#include "tokenizer/gguf.h"

namespace sinter::models {
namespace {

using spec::Family;
using spec::ModelSpec;

// Keys of one architecture: "llama.block_count".
class Keys {
 public:
  Keys(const io::GgufFile& file, std::string architecture) : file_(file), prefix_(std::move(architecture) + ".") {}
  std::string name(const char* key) const { return prefix_ + key; }
  bool has(const char* key) const { return file_.find(name(key)) != nullptr; }
  // Throws where it is no whole number of `least` to `most`.
  int64_t count(const char* key, int64_t least = 1, int64_t most = int64_t{1} << 31) const {
    const int64_t value = file_.integer(name(key));
    SINTER_CHECK(value >= least && value <= most, "'{}': key '{}' is {}; expected {} to {}", file_.path(), name(key),
                 value, least, most);
    return value;
  }
  int64_t count_or(const char* key, int64_t otherwise, int64_t least = 1) const {
    return has(key) ? count(key, least) : otherwise;
  }
  double number(const char* key, double otherwise) const { return file_.number(name(key), otherwise); }
  std::string text(const char* key, const char* otherwise) const { return file_.text(name(key), otherwise); }
  void refuse(const char* key, int64_t supported) const {
    if (!has(key)) return;
    const int64_t value = file_.integer(name(key));
    SINTER_CHECK(value == supported,
                 "'{}': key '{}' is {}, which would change the model's answers and is not supported", file_.path(),
                 name(key), value);
  }
  const io::GgufFile& file() const { return file_; }

 private:
  const io::GgufFile& file_;
  std::string prefix_;
};

Family family_of(const io::GgufFile& file) {
  const std::string architecture = file.text("general.architecture");
  std::string known;
  for (const spec::FamilyInfo& family : spec::families()) {
    const std::string name = family.gguf_architecture;
    if (name == architecture) {
      const bool has_experts = file.integer(name + ".expert_count", 0) > 0;
      return family.family == Family::llama && has_experts ? Family::mixtral : family.family;
    }
    if (known.find(name) == std::string::npos) known += (known.empty() ? "" : ", ") + name;
  }
  base::fail("'{}': general.architecture '{}' is not known; known: {}", file.path(), architecture, known);
}

// The factors of llama3's scaling stand in a tensor; the four numbers that made them are found from it.
bool is_llama3_scaling(const std::vector<float>& factors, const spec::RopeSpec& candidate, int64_t head_dim) {
  for (size_t i = 0; i < factors.size(); ++i) {
    const double frequency = std::pow(candidate.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double wavelength = 2 * M_PI / frequency;
    const auto old = static_cast<double>(candidate.original_max_positions);
    double expected = 1;
    if (wavelength > old / candidate.low_freq_factor) {
      expected = candidate.factor;
    } else if (wavelength >= old / candidate.high_freq_factor) {
      const double smooth =
          (old / wavelength - candidate.low_freq_factor) / (candidate.high_freq_factor - candidate.low_freq_factor);
      expected = 1 / ((1 - smooth) / candidate.factor + smooth);
    }
    if (std::abs(expected - static_cast<double>(factors[i])) > 1e-4 * expected) return false;
  }
  return true;
}

void read_rope_tensor(const io::GgufTensor& tensor, const io::GgufFile& file, ModelSpec& spec) {
  SINTER_CHECK(tensor.dtype == DType::f32 && tensor.format == core::WeightFormat::plain &&
                   tensor.num_elements() == spec.head_dim / 2,
               "'{}': tensor '{}' is {} of {} elements; expected f32 of head_dim / 2 = {}", file.path(), tensor.name,
               tensor.type_name(), tensor.num_elements(), spec.head_dim / 2);
  spec.rope.divisors.resize(static_cast<size_t>(tensor.num_elements()));
  std::memcpy(spec.rope.divisors.data(), tensor.bytes.data(), tensor.bytes.size());
  for (float d : spec.rope.divisors) {
    SINTER_CHECK(std::isfinite(d) && d > 0, "'{}': tensor '{}' holds {}; expected positive numbers", file.path(),
                 tensor.name, d);
  }
  if (std::all_of(spec.rope.divisors.begin(), spec.rope.divisors.end(), [](float d) { return d == 1.0f; })) {
    spec.rope.divisors.clear();
    return;
  }
  // By name where it is one of Llama 3's, so that a folder can say it too.
  const auto largest = static_cast<double>(*std::max_element(spec.rope.divisors.begin(), spec.rope.divisors.end()));
  for (int64_t original : {8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8}) {
    spec::RopeSpec candidate = spec.rope;
    candidate.kind = spec::RopeKind::llama3;
    candidate.factor = std::round(largest * 1e4) / 1e4;
    candidate.original_max_positions = original;
    if (!is_llama3_scaling(spec.rope.divisors, candidate, spec.head_dim)) continue;
    candidate.divisors = {};
    if (candidate.factor >= 1) spec.rope = candidate;
    return;
  }
}

void read_rope(const Keys& keys, ModelSpec& spec) {
  spec.rope.kind = spec::RopeKind::standard;
  spec.rope.theta = keys.number("rope.freq_base", 1e4);
  spec.rope.original_max_positions = spec.max_positions;
  keys.refuse("rope.dimension_count", spec.head_dim);
  const std::string kind = keys.text("rope.scaling.type", "none");
  if (kind == "none") {
    // Nothing to read.
  } else if (kind == "linear" || kind == "yarn") {
    spec.rope.kind = kind == "linear" ? spec::RopeKind::linear : spec::RopeKind::yarn;
    spec.rope.factor = keys.number("rope.scaling.factor", 1.0);
    spec.rope.original_max_positions = keys.count_or("rope.scaling.original_context_length", spec.max_positions);
    spec.rope.attention_factor = keys.number("rope.scaling.attn_factor", 0.0);
    spec.rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast", 32.0);
    spec.rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow", 1.0);
  } else {
    base::fail("'{}': key '{}' is '{}'; known: none, linear, yarn", keys.file().path(), keys.name("rope.scaling.type"),
               kind);
  }
  if (const io::GgufTensor* tensor = keys.file().find_tensor("rope_freqs.weight"))
    read_rope_tensor(*tensor, keys.file(), spec);
}

void read_experts(const Keys& keys, ModelSpec& spec) {
  spec.moe.num_experts = keys.count_or("expert_count", 0, 0);
  if (spec.moe.num_experts == 0) return;
  const io::GgufFile& file = keys.file();
  spec.moe.experts_per_token = keys.count("expert_used_count");
  spec.moe.ffn = keys.count_or("expert_feed_forward_length", spec.ffn);
  spec.moe.norm_topk_prob = file.boolean(keys.name("expert_weights_norm"), true);
  keys.refuse("expert_shared_count", 0);
  for (int64_t l = 0; l < spec.num_layers; ++l) {
    spec.sparse_layers.push_back(file.find_tensor(fmt::format("blk.{}.ffn_gate_inp.weight", l)) ? 1 : 0);
  }
}

void read_window(const Keys& keys, ModelSpec& spec) {
  const int64_t window = keys.count_or("attention.sliding_window", 0, 0);
  if (window > 0) spec.window.assign(static_cast<size_t>(spec.num_layers), window);
}

bool has_tensor(const io::GgufFile& file, const char* name) { return file.find_tensor(name) != nullptr; }

void read_gpt2(ModelSpec& spec) {
  spec.norm = spec::NormKind::layer;
  spec.activation = spec::Activation::gelu_tanh;
  spec.gated_mlp = false;
  spec.learned_positions = true;
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
}

void read_tokens(const Keys& keys, ModelSpec& spec) {
  const io::GgufFile& file = keys.file();
  if (!file.find("tokenizer.ggml.tokens")) return;
  const auto count = static_cast<int64_t>(file.get("tokenizer.ggml.tokens").count);
  SINTER_CHECK(count == spec.vocab_size,
               "'{}': key 'tokenizer.ggml.tokens' lists {} tokens, but token_embd.weight has {} rows", file.path(),
               count, spec.vocab_size);
  auto id_of = [&](const char* name) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const int64_t id = file.integer(key, -1);
    SINTER_CHECK(id >= -1 && id < count, "'{}': key '{}' is {}, but there are {} tokens", file.path(), key, id, count);
    return id;
  };
  spec.bos_token = id_of("bos");
  spec.pad_token = id_of("padding");
  spec.eos_tokens = tokenizer::end_tokens_of(file);
}

}  // namespace

ModelSpec gguf_model_spec(const io::GgufFile& file) {
  ModelSpec spec;
  spec.family = family_of(file);
  const Keys keys(file, spec::info_of(spec.family).gguf_architecture);
  // No more blocks than there are tensors, so that a wrong count costs nothing.
  constexpr int64_t kLeastTensorsPerBlock = 2;
  spec.num_layers = keys.count("block_count", 1, int64_t{1} << 40);
  SINTER_CHECK(
      spec.num_layers <= static_cast<int64_t>(file.tensors().size()) / kLeastTensorsPerBlock || spec.num_layers <= 4,
      "'{}': key '{}' is {}, but the file has {} tensors", file.path(), keys.name("block_count"), spec.num_layers,
      file.tensors().size());
  spec.max_positions = keys.count("context_length");
  spec.hidden = keys.count("embedding_length");
  spec.ffn = keys.count("feed_forward_length");
  spec.num_heads = keys.count("attention.head_count");
  spec.num_kv_heads = keys.count_or("attention.head_count_kv", spec.num_heads);
  SINTER_CHECK(keys.has("attention.key_length") || spec.hidden % spec.num_heads == 0,
               "'{}': key '{}' is {}, which does not divide {} = {}", file.path(), keys.name("attention.head_count"),
               spec.num_heads, keys.name("embedding_length"), spec.hidden);
  spec.head_dim = keys.count_or("attention.key_length", spec.hidden / spec.num_heads);
  keys.refuse("attention.value_length", spec.head_dim);
  const io::GgufTensor& embedding = file.tensor("token_embd.weight");
  spec.vocab_size = embedding.rows();
  spec.tied_head = !has_tensor(file, "output.weight");
  if (spec.family == Family::gpt2) {
    read_gpt2(spec);
  } else {
    spec.qk_norm = spec::info_of(spec.family).is_qwen && has_tensor(file, "blk.0.attn_q_norm.weight");
    spec.qkv_bias = has_tensor(file, "blk.0.attn_q.bias");
    spec.out_bias = has_tensor(file, "blk.0.attn_output.bias");
    spec.mlp_bias = has_tensor(file, "blk.0.ffn_up.bias");
  }
  const io::GgufTensor* k = file.find_tensor("blk.0.attn_k.weight");
  SINTER_CHECK(!k || k->rows() == spec.kv_width(),
               "'{}': tensor 'blk.0.attn_k.weight' has {} rows; key '{}' = {} heads of {} make it {}", file.path(),
               k->rows(), keys.name("attention.head_count_kv"), spec.num_kv_heads, spec.head_dim, spec.kv_width());
  const char* eps =
      spec.norm == spec::NormKind::rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  const double norm_eps = file.number(keys.name(eps));
  SINTER_CHECK(std::isfinite(norm_eps) && norm_eps >= 0, "'{}': key '{}' is {}; expected 0 or more", file.path(),
               keys.name(eps), norm_eps);
  spec.norm_eps = static_cast<float>(norm_eps);
  if (spec.norm == spec::NormKind::rms) read_rope(keys, spec);
  read_experts(keys, spec);
  read_window(keys, spec);
  read_tokens(keys, spec);
  try {
    spec::check_model_spec(spec);
  } catch (const base::Error& e) {
    base::fail("'{}': {}", file.path(), e.what());
  }
  return spec;
}

}  // namespace sinter::models
