// From a recipe's [model] section to a ModelSpec.
#include <map>

#include "base/error.h"
#include "base/text.h"
#include "spec/hf_config.h"
#include "spec/recipe.h"

namespace sinter::spec {
namespace {

Family parse_family(const std::string& text) {
  std::vector<std::string> names;
  for (Family family : {Family::gpt2, Family::llama, Family::mistral, Family::qwen2, Family::qwen3, Family::mixtral,
                        Family::qwen3_moe}) {
    if (text == family_name(family)) return family;
    names.push_back(family_name(family));
  }
  base::fail("model.family is '{}'; expected one of gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe{}", text,
             base::did_you_mean(text, names));
}

// What a family fixes, as its reference implementation does.
void set_family_traits(ModelSpec& s) {
  if (s.family == Family::gpt2) {
    s.norm = NormKind::layer;
    s.activation = Activation::gelu_tanh;
    s.gated_mlp = false;
    s.learned_positions = true;
    s.qkv_bias = s.out_bias = s.mlp_bias = true;
    return;
  }
  s.rope.kind = RopeKind::standard;
  s.qkv_bias = s.family == Family::qwen2;
  s.qk_norm = s.family == Family::qwen3 || s.family == Family::qwen3_moe;
}

void set_experts(ModelSpec& s, const ModelRecipe& m) {
  const bool wants = s.family == Family::mixtral || s.family == Family::qwen3_moe;
  SINTER_CHECK(wants == (m.experts > 0), "model.experts is {} with family {}; {}", m.experts, family_name(s.family),
               wants ? "a mixture of experts needs at least one" : "only mixtral and qwen3_moe have experts");
  if (!wants) return;
  s.moe.num_experts = m.experts;
  s.moe.experts_per_token = m.experts_per_token;
  s.moe.ffn = m.expert_ffn ? m.expert_ffn : s.ffn;
  s.moe.balance_loss = static_cast<float>(m.balance_loss);
  s.sparse_layers.assign(static_cast<size_t>(s.num_layers), 1);
}

}  // namespace

ModelSpec make_model_spec(const Recipe& recipe, int64_t tokenizer_vocab) {
  const ModelRecipe& m = recipe.model;
  if (!m.path.empty()) {
    ModelSpec spec = load_hf_config(m.path + "/config.json");
    SINTER_CHECK(tokenizer_vocab <= spec.vocab_size, "the tokenizer has {} tokens but the model '{}' only {}",
                 tokenizer_vocab, m.path, spec.vocab_size);
    return spec;
  }
  for (const auto& [name, value] :
       std::map<const char*, int64_t>{{"hidden", m.hidden}, {"layers", m.layers}, {"heads", m.heads}}) {
    SINTER_CHECK(value > 0, "model.{} is missing or 0: an architecture written out needs hidden, layers and heads",
                 name);
  }
  ModelSpec s;
  s.family = parse_family(m.family);
  s.vocab_size = m.vocab_size ? m.vocab_size : tokenizer_vocab;
  SINTER_CHECK(s.vocab_size > 0, "model.vocab_size is missing, and there is no tokenizer to take it from");
  SINTER_CHECK(tokenizer_vocab <= s.vocab_size, "model.vocab_size is {} but the tokenizer has {} tokens", s.vocab_size,
               tokenizer_vocab);
  s.hidden = m.hidden;
  s.num_layers = m.layers;
  s.num_heads = m.heads;
  s.num_kv_heads = m.kv_heads ? m.kv_heads : m.heads;
  SINTER_CHECK(m.head_dim || m.hidden % m.heads == 0,
               "model.hidden {} is not a multiple of model.heads {}; set head_dim", m.hidden, m.heads);
  s.head_dim = m.head_dim ? m.head_dim : m.hidden / m.heads;
  SINTER_CHECK(
      s.family != Family::gpt2 || (s.num_kv_heads == s.num_heads && s.head_dim * s.num_heads == s.hidden),
      "model.family gpt2 has as many kv_heads as heads and a head_dim of hidden / heads, which its config.json "
      "cannot say otherwise: {} kv_heads of {} elements with {} heads and hidden {}; leave them out, or take "
      "llama",
      s.num_kv_heads, s.head_dim, s.num_heads, s.hidden);
  s.ffn = m.ffn ? m.ffn : (s.family == Family::gpt2 ? 4 * m.hidden : (m.hidden * 8 / 3 + 63) / 64 * 64);
  s.max_positions = m.max_positions ? m.max_positions : recipe.data.sequence_length;
  set_family_traits(s);
  s.tied_head = m.tied_head;
  s.norm_eps = static_cast<float>(m.norm_eps);
  s.rope.theta = m.rope_theta;
  s.dropout = {static_cast<float>(m.dropout), static_cast<float>(m.dropout), static_cast<float>(m.dropout)};
  s.init_std = static_cast<float>(m.init_std);
  s.mtp_heads = m.mtp_heads;
  if (m.window > 0) {
    SINTER_CHECK(s.family == Family::mistral || s.family == Family::mixtral,
                 "model.window is only for mistral and mixtral");
    s.window.assign(static_cast<size_t>(s.num_layers), m.window);
  }
  set_experts(s, m);
  try {
    check_model_spec(s);
  } catch (const base::Error& e) {
    base::fail("the recipe's [model] cannot be, by the names of Hugging Face's config.json: {}", e.what());
  }
  return s;
}

}  // namespace sinter::spec
