// FLOPs per token. Published utilisations count differently; here every way of counting has a name, and a number never
// goes without its convention. A product (m,k)x(k,n) is 2mkn FLOPs; the backward pass is twice the forward pass.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spec/model_spec.h"

namespace sinter::plan {

// What the conventions need of a model; experts count as far as a token passes through them.
struct FlopBasis {
  double active_parameters = 0;     // everything a token uses, embedding tables whole
  double embedding_parameters = 0;  // token table
  double position_parameters = 0;
  double head_parameters = 0;  // 0 when tied
  double layer_matrices = 0;   // weights of products in the blocks, router included
  double head_matrix = 0;      // V * C, tied or not; times the heads that predict
  double num_layers = 0;
  double attention_width = 0;  // num_heads * (dim of keys + dim of values) / 2
  bool tied_head = false;
  std::vector<int64_t> windows;  // per layer, 0 = all keys; empty = all layers 0
};
FlopBasis make_flop_basis(const spec::ModelSpec& spec);

enum class ParameterBase { total, non_embedding, no_input_embedding, matrices };

struct FlopConvention {
  std::string_view name;
  ParameterBase base;       // which N
  double layer_factor;      // FLOPs per token and parameter of the blocks: 6, or 8 with full recompute
  double attention_factor;  // times layers * attention width * context: 12 full square, 6 causal, 7 flash, 8 recomputed
  bool counts_hardware;     // work done (HFU) rather than work needed (MFU)
  std::string_view formula;
  std::string_view used_by;
};
const std::vector<FlopConvention>& flop_conventions();
// Throws UsageError naming the nearest.
const FlopConvention& flop_convention(std::string_view name);
inline constexpr std::string_view kDefaultConvention = "palm";

struct FlopsPerToken {
  double parameters = 0;  // products with weights
  double attention = 0;   // products of activations
  double total() const { return parameters + attention; }
};
// Training step, forward and backward (and recompute where the convention counts it).
FlopsPerToken train_flops_per_token(const FlopBasis& basis, double seq_len, const FlopConvention& convention);
// One third of the convention's training FLOPs; recompute left out.
FlopsPerToken forward_flops_per_token(const FlopBasis& basis, double seq_len, const FlopConvention& convention);
// Sum over layers of the keys the convention lets one query see: seq_len, or the window where that is smaller.
double attended_keys(const FlopBasis& basis, double seq_len);

// One line of the exact forward pass: "qkv", "attention scores and values", "mlp", ...
struct FlopPart {
  std::string name;
  double flops = 0;  // per token, all layers
};
std::vector<FlopPart> forward_parts(const spec::ModelSpec& spec, double seq_len, bool causal_halved);

// Closed formulas of the literature for the same model, to be printed beside the exact count.
struct FormulaCount {
  std::string name, formula;
  double value = 0;
};
std::vector<FormulaCount> parameter_formulas(const spec::ModelSpec& spec);

}  // namespace sinter::plan
