// One row per model family: its names in Hugging Face and GGUF files, and what its config.json leaves unsaid.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "spec/model_spec.h"
#include "spec/parameters.h"

namespace sinter::spec {

struct FamilyInfo {
  Family family;
  const char* name;             // ours
  const char* hf_architecture;  // "LlamaForCausalLM"
  const char* hf_model_type;    // "llama"
  const char* gguf_architecture;
  // In GGUF files the rows of a head of Q and K stand as pairs that RoPE rotates (i, i + D/2 are neighbours there).
  bool has_paired_rows_in_gguf = false;
  bool is_qwen = false;
  // What transformers takes for keys that a config.json leaves out, where its families differ.
  int64_t max_positions = 2048;
  int64_t kv_heads = 0;  // 0 = as many as heads
  int64_t window = 0;    // 0 = none
  double rope_theta = 1e4;
  double norm_eps = 1e-6;
};

std::span<const FamilyInfo> families();
const FamilyInfo& info_of(Family family);

// Where a part of a stored tensor lies in a GGUF file: the tensor's name ("blk.0.attn_q.weight"), and the expert in a
// stack of all experts, or -1. Throws base::Error for a tensor that GGUF has no name for (extra heads).
struct GgufPlace {
  std::string name;
  int64_t expert = -1;
};
GgufPlace gguf_place(const ParameterPart& part);
// Whether this part's rows are in pairs there (FamilyInfo::has_paired_rows_in_gguf), and of how many heads.
int64_t paired_heads_in_gguf(const ModelSpec& spec, const ParameterPart& part);

}  // namespace sinter::spec
