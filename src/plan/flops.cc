#include "plan/flops.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "spec/parameters.h"

namespace sinter::plan {

FlopBasis make_flop_basis(const spec::ModelSpec& spec) {
  FlopBasis basis;
  const double active_share = spec.moe.num_experts > 0 ? static_cast<double>(spec.moe.experts_per_token) /
                                                             static_cast<double>(spec.moe.num_experts)
                                                       : 1;
  for (const spec::ParameterSpec& p : spec::make_parameter_table(spec)) {
    auto n = static_cast<double>(p.num_elements());
    using enum spec::ParameterRole;
    switch (p.role) {
      case embedding:
        basis.embedding_parameters += n;
        break;
      case position:
        basis.position_parameters += n;
        break;
      case head:
        basis.head_parameters += n;
        break;
      case matrix:
      case router:
        basis.layer_matrices += n;
        break;
      case expert_matrix:
        basis.layer_matrices += n * active_share;
        break;
      default:
        break;
    }
    basis.active_parameters += p.role == expert_matrix ? n * active_share : n;
  }
  basis.head_matrix = static_cast<double>(spec.vocab_size * spec.hidden) * static_cast<double>(1 + spec.mtp_heads);
  basis.num_layers = static_cast<double>(spec.num_layers + spec.mtp_heads);
  basis.attention_width = static_cast<double>(spec.q_width());
  basis.tied_head = spec.tied_head;
  for (int64_t l = 0; l < spec.num_layers + spec.mtp_heads; ++l) basis.windows.push_back(spec.window_of(l));
  return basis;
}

const std::vector<FlopConvention>& flop_conventions() {
  using enum ParameterBase;
  static const std::vector<FlopConvention> conventions{
      {"kaplan", non_embedding, 6, 0, false, "6 N, N without embeddings", "Kaplan et al. 2020"},
      {"kaplan-context", non_embedding, 6, 6, false, "6 N + 6 L A s, N without embeddings",
       "Kaplan et al. 2020, Table 1"},
      {"6nd", total, 6, 0, false, "6 N, N with embeddings", "GPT-3 Table D.1, Llama 3, estimates of run cost"},
      {"palm", total, 6, 12, false, "6 N + 12 L A s, N with embeddings", "PaLM, nanotron, MosaicML, nanoGPT"},
      {"palm-causal", total, 6, 6, false, "6 N + 6 L A s, N with embeddings", "PaLM's count with the causal half"},
      {"torchtitan", no_input_embedding, 6, 12, false, "6 (N - input embedding unless tied) + 12 L A s", "torchtitan"},
      {"dgxc", matrices, 6, 12, false, "6 (layer matrices + V C) + 12 L A s", "NVIDIA dgxc recipes, Korthikanti eq. 7"},
      {"megatron", matrices, 6, 6, false, "6 (layer matrices + V C) + 6 L A s",
       "Megatron-Core and Bridge since 2025, MaxText"},
      {"flash", matrices, 6, 7, true, "6 (layer matrices + V C) + 7 L A s",
       "causal flash attention: backward forms QK' again"},
      {"recompute", matrices, 8, 8, true, "8 layer matrices + 6 V C + 8 L A s", "full recompute with causal attention"},
      {"sc21", matrices, 8, 16, true, "8 layer matrices + 6 V C + 16 L A s", "Narayanan et al. 2021 eq. 3 (HFU)"},
  };
  return conventions;
}

const FlopConvention& flop_convention(std::string_view name) {
  std::vector<std::string> names;
  for (const FlopConvention& c : flop_conventions()) {
    if (c.name == name) return c;
    names.emplace_back(c.name);
  }
  base::fail_usage("unknown FLOP convention '{}'; known: {}{}", name, fmt::join(names, ", "),
                   base::did_you_mean(name, names));
}

double attended_keys(const FlopBasis& basis, double seq_len) {
  if (basis.windows.empty()) return basis.num_layers * seq_len;
  double keys = 0;
  for (int64_t window : basis.windows) keys += window > 0 ? std::min(seq_len, static_cast<double>(window)) : seq_len;
  return keys;
}

FlopsPerToken train_flops_per_token(const FlopBasis& b, double seq_len, const FlopConvention& c) {
  FlopsPerToken flops;
  flops.attention = c.attention_factor * b.attention_width * attended_keys(b, seq_len);
  switch (c.base) {
    case ParameterBase::total:
      flops.parameters = c.layer_factor * b.active_parameters;
      break;
    case ParameterBase::non_embedding:
      flops.parameters =
          c.layer_factor * (b.active_parameters - b.embedding_parameters - b.position_parameters - b.head_parameters);
      break;
    case ParameterBase::no_input_embedding:
      flops.parameters = c.layer_factor * (b.active_parameters - (b.tied_head ? 0 : b.embedding_parameters));
      break;
    case ParameterBase::matrices:
      flops.parameters = c.layer_factor * b.layer_matrices + 6 * b.head_matrix;
      break;
  }
  return flops;
}

FlopsPerToken forward_flops_per_token(const FlopBasis& basis, double seq_len, const FlopConvention& convention) {
  FlopConvention needed = convention;  // without what is done twice
  needed.layer_factor = 6;
  if (needed.counts_hardware) needed.attention_factor = convention.attention_factor == 16 ? 12 : 6;
  FlopsPerToken flops = train_flops_per_token(basis, seq_len, needed);
  return {flops.parameters / 3, flops.attention / 3};
}

std::vector<FlopPart> forward_parts(const spec::ModelSpec& spec, double seq_len, bool causal_halved) {
  FlopPart qkv{"qkv projection"}, core{"attention scores and values"}, out{"attention output"}, mlp{"mlp"},
      router{"router"}, experts{"experts"};
  const auto C = static_cast<double>(spec.hidden);
  FlopBasis basis = make_flop_basis(spec);
  for (int64_t l = 0; l < spec.num_layers + spec.mtp_heads; ++l) {
    qkv.flops += 2 * C * static_cast<double>(spec.qkv_width());
    out.flops += 2 * C * static_cast<double>(spec.q_width());
    if (spec.is_sparse(l)) {
      router.flops += 2 * C * static_cast<double>(spec.moe.num_experts);
      experts.flops += 2 * 3 * C * static_cast<double>(spec.moe.ffn * spec.moe.experts_per_token);
    } else {
      mlp.flops += 2 * (spec.gated_mlp ? 3 : 2) * C * static_cast<double>(spec.ffn);
    }
  }
  core.flops = 4 * basis.attention_width * attended_keys(basis, seq_len) * (causal_halved ? 0.5 : 1.0);
  FlopPart head{"head (logits)", 2 * basis.head_matrix};
  std::vector<FlopPart> parts{qkv, core, out, mlp, router, experts, head};
  std::erase_if(parts, [](const FlopPart& part) { return part.flops == 0; });
  return parts;
}

std::vector<FormulaCount> parameter_formulas(const spec::ModelSpec& spec) {
  const auto h = static_cast<double>(spec.hidden), L = static_cast<double>(spec.num_layers),
             v = static_cast<double>(spec.vocab_size), s = static_cast<double>(spec.max_positions);
  std::vector<FormulaCount> out;
  if (spec.family == spec::Family::gpt2) {
    out.push_back(
        {"GPT, no position table", "h v + L (12 h^2 + 13 h) + 2 h", h * v + L * (12 * h * h + 13 * h) + 2 * h});
    out.push_back({"GPT, with position table", "h v + s h + L (12 h^2 + 13 h) + 2 h",
                   h * v + s * h + L * (12 * h * h + 13 * h) + 2 * h});
    out.push_back({"matrices and two embeddings", "12 L h^2 + 2 h v", 12 * L * h * h + 2 * h * v});
  } else if (spec.moe.num_experts == 0) {
    const auto q = static_cast<double>(spec.q_width()), k = static_cast<double>(spec.kv_width()),
               f = static_cast<double>(spec.ffn);
    out.push_back(
        {"gated, no biases",
         spec.tied_head ? "v h + L (2 h q + 2 h k + 3 h f + 2 h) + h" : "2 v h + L (2 h q + 2 h k + 3 h f + 2 h) + h",
         (spec.tied_head ? 1 : 2) * v * h + L * (2 * h * q + 2 * h * k + 3 * h * f + 2 * h) + h});
  }
  out.push_back({"blocks of width h alone", "12 L h^2", 12 * L * h * h});
  return out;
}

}  // namespace sinter::plan
