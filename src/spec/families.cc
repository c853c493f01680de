#include "spec/families.h"

#include <cctype>

#include "base/error.h"

namespace sinter::spec {
namespace {

// In the order of the enumeration.
constexpr FamilyInfo kFamilies[] = {
    // family, names: ours, HF architecture, HF model type, GGUF; pairs in GGUF, is Qwen; positions, KV heads, window,
    // theta, eps
    {Family::gpt2, "gpt2", "GPT2LMHeadModel", "gpt2", "gpt2", false, false, 2048, 0, 0, 1e4, 1e-6},
    {Family::llama, "llama", "LlamaForCausalLM", "llama", "llama", true, false, 2048, 0, 0, 1e4, 1e-6},
    {Family::mistral, "mistral", "MistralForCausalLM", "mistral", "llama", true, false, 131072, 8, 4096, 1e4, 1e-6},
    {Family::qwen2, "qwen2", "Qwen2ForCausalLM", "qwen2", "qwen2", false, true, 32768, 32, 4096, 1e4, 1e-6},
    {Family::qwen3, "qwen3", "Qwen3ForCausalLM", "qwen3", "qwen3", false, true, 32768, 32, 4096, 1e4, 1e-6},
    {Family::mixtral, "mixtral", "MixtralForCausalLM", "mixtral", "llama", true, false, 131072, 8, 0, 1e6, 1e-5},
    {Family::qwen3_moe, "qwen3_moe", "Qwen3MoeForCausalLM", "qwen3_moe", "qwen3moe", false, true, 32768, 4, 4096, 1e4,
     1e-6},
};

// Names of a block's modules: Hugging Face's, GGUF's.
struct ModuleName {
  std::string_view hf, gguf;
};
constexpr ModuleName kBlockModules[] = {
    {"input_layernorm", "attn_norm"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"mlp.gate", "ffn_gate_inp"},
    {"block_sparse_moe.gate", "ffn_gate_inp"},
    {"ln_1", "attn_norm"},
    {"attn.c_attn", "attn_qkv"},
    {"attn.c_proj", "attn_output"},
    {"ln_2", "ffn_norm"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};
constexpr ModuleName kOtherModules[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},        {"lm_head", "output"},
    {"transformer.wte", "token_embd"},    {"transformer.wpe", "position_embd"}, {"transformer.ln_f", "output_norm"},
};
constexpr ModuleName kExpertModules[] = {
    {"gate_proj", "ffn_gate_exps"}, {"up_proj", "ffn_up_exps"}, {"down_proj", "ffn_down_exps"},
    {"w1", "ffn_gate_exps"},        {"w3", "ffn_up_exps"},      {"w2", "ffn_down_exps"},
};

std::string_view find_module(std::span<const ModuleName> names, std::string_view hf) {
  for (const ModuleName& name : names) {
    if (name.hf == hf) return name.gguf;
  }
  return {};
}

// "3.rest" to 3 and "rest"; false where no number stands first.
bool take_number(std::string_view& text, std::string& number) {
  size_t end = 0;
  while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
  if (end == 0 || end == text.size() || text[end] != '.') return false;
  number = text.substr(0, end);
  text.remove_prefix(end + 1);
  return true;
}

}  // namespace

std::span<const FamilyInfo> families() { return kFamilies; }

const FamilyInfo& info_of(Family family) { return kFamilies[static_cast<size_t>(family)]; }

GgufPlace gguf_place(const ParameterPart& part) {
  std::string_view name = part.hf_name;
  const size_t dot = name.rfind('.');
  const std::string suffix(name.substr(dot));  // ".weight", ".bias"
  name = name.substr(0, dot);
  if (std::string_view found = find_module(kOtherModules, name); !found.empty()) return {std::string(found) + suffix};
  std::string layer;
  for (std::string_view prefix : {"model.layers.", "transformer.h."}) {
    if (!name.starts_with(prefix)) continue;
    std::string_view rest = name.substr(prefix.size());
    if (!take_number(rest, layer)) break;
    if (std::string_view found = find_module(kBlockModules, rest); !found.empty())
      return {"blk." + layer + "." + std::string(found) + suffix};
    for (std::string_view experts : {"mlp.experts.", "block_sparse_moe.experts."}) {
      if (!rest.starts_with(experts)) continue;
      rest.remove_prefix(experts.size());
      std::string expert;
      if (!take_number(rest, expert)) break;
      if (std::string_view found = find_module(kExpertModules, rest); !found.empty())
        return {"blk." + layer + "." + std::string(found) + suffix, std::stoll(expert)};
    }
  }
  base::fail("GGUF files have no name for the tensor '{}'", part.hf_name);
}

int64_t paired_heads_in_gguf(const ModelSpec& spec, const ParameterPart& part) {
  if (!info_of(spec.family).has_paired_rows_in_gguf) return 0;
  if (part.hf_name.find(".q_proj.") != std::string::npos) return spec.num_heads;
  if (part.hf_name.find(".k_proj.") != std::string::npos) return spec.num_kv_heads;
  return 0;
}

}  // namespace sinter::spec
