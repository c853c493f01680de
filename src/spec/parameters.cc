#include "spec/parameters.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sinter::spec {
namespace {

using base::Shape;

class TableBuilder {
 public:
  explicit TableBuilder(const ModelSpec& spec) : spec_(spec), is_gpt2_(spec.family == Family::gpt2) {}

  std::vector<ParameterSpec> build() {
    add_embeddings();
    for (int64_t l = 0; l < spec_.num_layers; ++l) {
      std::string hf = (is_gpt2_ ? "transformer.h." : "model.layers.") + std::to_string(l) + ".";
      add_block("layers." + std::to_string(l) + ".", hf, l, spec_.is_sparse(l));
    }
    add_norm("final_norm", is_gpt2_ ? "transformer.ln_f" : "model.norm", spec_.num_layers);
    if (!spec_.tied_head) {
      ParameterSpec& head = add("head.weight", {spec_.vocab_size, spec_.hidden}, ParameterRole::head, spec_.num_layers);
      head.parts = {{"lm_head.weight", 0, spec_.vocab_size}};
      head.tp_axis = 0;
    }
    for (int64_t j = 0; j < spec_.mtp_heads; ++j) {
      std::string hf = (is_gpt2_ ? "transformer.mtp." : "model.mtp.") + std::to_string(j) + ".";
      add_block("mtp." + std::to_string(j) + ".", hf, spec_.num_layers + 1 + j, false);
    }
    return std::move(table_);
  }

 private:
  ParameterSpec& add(std::string name, Shape shape, ParameterRole role, int64_t layer) {
    ParameterSpec p;
    p.name = std::move(name);
    p.shape = shape;
    p.role = role;
    p.layer = layer;
    p.init_std = spec_.init_std;
    p.decays = shape.rank() >= 2;
    if (role == ParameterRole::norm) p.init = InitKind::ones;
    if (role == ParameterRole::bias) p.init = InitKind::zeros;
    return table_.emplace_back(std::move(p));
  }

  void add_embeddings() {
    ParameterSpec& tokens = add("embedding.weight", {spec_.vocab_size, spec_.hidden}, ParameterRole::embedding, -1);
    tokens.parts = {{is_gpt2_ ? "transformer.wte.weight" : "model.embed_tokens.weight", 0, spec_.vocab_size}};
    tokens.tp_axis = 0;
    if (spec_.learned_positions) {
      ParameterSpec& positions =
          add("position.weight", {spec_.max_positions, spec_.hidden}, ParameterRole::position, -1);
      positions.parts = {{"transformer.wpe.weight", 0, spec_.max_positions}};
    }
  }

  void add_norm(const std::string& name, const std::string& hf, int64_t layer) {
    add(name + ".weight", {spec_.hidden}, ParameterRole::norm, layer).parts = {{hf + ".weight", 0, spec_.hidden}};
    if (spec_.norm == NormKind::layer) {
      add(name + ".bias", {spec_.hidden}, ParameterRole::bias, layer).parts = {{hf + ".bias", 0, spec_.hidden}};
    }
  }

  // A linear layer (rows, columns) made of row blocks with their own names on disk; `tp_axis` 0 cuts rows, 1 columns.
  void add_linear(const std::string& name, int64_t columns, std::vector<ParameterPart> parts, bool has_bias,
                  int tp_axis, int64_t layer, bool is_residual) {
    int64_t rows = 0;
    for (ParameterPart& part : parts) {
      part.row_begin = rows;
      part.transposed = is_gpt2_;
      rows += part.rows;
    }
    ParameterSpec& weight = add(name + ".weight", {rows, columns}, ParameterRole::matrix, layer);
    weight.tp_axis = tp_axis;
    if (is_residual && is_gpt2_) {  // GPT-2 scales the projections into the residual stream by its depth
      weight.init_std = spec_.init_std / std::sqrt(2.0f * static_cast<float>(spec_.num_layers));
    }
    weight.parts = parts;
    for (ParameterPart& part : weight.parts) part.hf_name += ".weight";
    if (!has_bias) return;
    ParameterSpec& bias = add(name + ".bias", {rows}, ParameterRole::bias, layer);
    bias.tp_axis = tp_axis == 0 ? 0 : -1;
    bias.parts = std::move(parts);
    for (ParameterPart& part : bias.parts) {
      part.hf_name += ".bias";
      part.transposed = false;
    }
  }

  void add_block(const std::string& name, const std::string& hf, int64_t layer, bool is_sparse) {
    const std::string attention = hf + (is_gpt2_ ? "attn." : "self_attn.");
    add_norm(name + "attention_norm", hf + (is_gpt2_ ? "ln_1" : "input_layernorm"), layer);
    std::vector<ParameterPart> qkv{{attention + "q_proj", 0, spec_.q_width()},
                                   {attention + "k_proj", 0, spec_.kv_width()},
                                   {attention + "v_proj", 0, spec_.kv_width()}};
    if (is_gpt2_) qkv = {{attention + "c_attn", 0, spec_.qkv_width()}};
    add_linear(name + "attention.qkv", spec_.hidden, qkv, spec_.qkv_bias, 0, layer, false);
    if (spec_.qk_norm) {
      for (const char* which : {"q_norm", "k_norm"}) {
        add(name + "attention." + which + ".weight", {spec_.head_dim}, ParameterRole::norm, layer).parts = {
            {attention + which + ".weight", 0, spec_.head_dim}};
      }
    }
    add_linear(name + "attention.out", spec_.q_width(),
               {{attention + (is_gpt2_ ? "c_proj" : "o_proj"), 0, spec_.hidden}}, spec_.out_bias, 1, layer, true);
    add_norm(name + "mlp_norm", hf + (is_gpt2_ ? "ln_2" : "post_attention_layernorm"), layer);
    if (is_sparse) {
      add_experts(name, hf, layer);
    } else {
      add_mlp(name, hf + "mlp.", layer);
    }
  }

  void add_mlp(const std::string& name, const std::string& hf, int64_t layer) {
    std::vector<ParameterPart> up{{hf + (is_gpt2_ ? "c_fc" : "up_proj"), 0, spec_.ffn}};
    if (spec_.gated_mlp) up.insert(up.begin(), {hf + "gate_proj", 0, spec_.ffn});
    add_linear(name + "mlp.up", spec_.hidden, up, spec_.mlp_bias, 0, layer, false);
    add_linear(name + "mlp.down", spec_.ffn, {{hf + (is_gpt2_ ? "c_proj" : "down_proj"), 0, spec_.hidden}},
               spec_.mlp_bias, 1, layer, true);
  }

  void add_experts(const std::string& name, const std::string& hf, int64_t layer) {
    const bool is_mixtral = spec_.family == Family::mixtral;
    const std::string moe = hf + (is_mixtral ? "block_sparse_moe." : "mlp.");
    const int64_t E = spec_.moe.num_experts, F = spec_.moe.ffn, C = spec_.hidden;
    ParameterSpec& router = add(name + "moe.router.weight", {E, C}, ParameterRole::router, layer);
    router.parts = {{moe + "gate.weight", 0, E}};
    ParameterSpec up, down;
    for (int64_t e = 0; e < E; ++e) {
      const std::string expert = moe + "experts." + std::to_string(e) + ".";
      up.parts.push_back({expert + (is_mixtral ? "w1" : "gate_proj") + ".weight", 0, F, e});
      up.parts.push_back({expert + (is_mixtral ? "w3" : "up_proj") + ".weight", F, F, e});
      down.parts.push_back({expert + (is_mixtral ? "w2" : "down_proj") + ".weight", 0, C, e});
    }
    auto add_stack = [&](const char* suffix, Shape shape, std::vector<ParameterPart> parts, int tp_axis) {
      ParameterSpec& p = add(name + suffix, shape, ParameterRole::expert_matrix, layer);
      p.parts = std::move(parts);
      p.expert_axis = 0;
      p.tp_axis = tp_axis;
    };
    add_stack("moe.up.weight", {E, 2 * F, C}, std::move(up.parts), 1);
    add_stack("moe.down.weight", {E, C, F}, std::move(down.parts), 2);
  }

  const ModelSpec& spec_;
  const bool is_gpt2_;
  std::vector<ParameterSpec> table_;
};

}  // namespace

std::vector<ParameterSpec> make_parameter_table(const ModelSpec& spec) { return TableBuilder(spec).build(); }

ParameterCounts count_parameters(const ModelSpec& spec) {
  ParameterCounts counts;
  for (const ParameterSpec& p : make_parameter_table(spec)) {
    int64_t n = p.num_elements();
    counts.total += n;
    bool is_expert = p.role == ParameterRole::expert_matrix;
    counts.active += is_expert ? n / spec.moe.num_experts * spec.moe.experts_per_token : n;
    if (p.role == ParameterRole::embedding) counts.embedding += n;
    if (p.role == ParameterRole::position) counts.position += n;
    if (p.role == ParameterRole::head) counts.head += n;
  }
  return counts;
}

int64_t loss_chunk_rows(int64_t rows, int64_t vocab_size, int64_t element_bytes) {
  // Each chunk reads and writes the head's gradient once. At this size that does not show any more (on an H200 a step
  // of GPT-2 124M takes 1.4 % less time than with 256 MiB, of Llama 1B 0.4 % less than with 544), and it is still
  // little beside activations.
  constexpr int64_t kStep = 128, kMost = 16384;
  auto up_to_step = [](int64_t n) { return (n + kStep - 1) / kStep * kStep; };
  const int64_t most = std::clamp(kLossChunkBytes / (vocab_size * element_bytes) / kStep * kStep, kStep, kMost);
  const int64_t chunks = std::max<int64_t>(1, (rows + most - 1) / most);
  return std::min(rows, up_to_step((rows + chunks - 1) / chunks));  // of equal size
}

}  // namespace sinter::spec
