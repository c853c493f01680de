// Low-rank adapters (LoRA and its kin) as further entries of the parameter table: beside a frozen W (N, K), or some
// rows of it, stand a (r, K) and b (rows, r), and the product becomes x W^T + scale (x a^T) b^T.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "spec/local_table.h"

namespace sinter::spec {

// Named and meant as in PEFT's adapter_config.json. A module is what Hugging Face names: "model.layers.0.mlp.up_proj".
struct AdapterSpec {
  int64_t rank = 16;
  double alpha = 32;
  double dropout = 0;
  bool rslora = false;  // scale = alpha / sqrt(rank) instead of alpha / rank
  bool dora = false;    // rows are scaled to norms that train too
  // Modules by the end of their names, or "all-linear": every linear layer but the head.
  std::vector<std::string> targets{"all-linear"};
  // Other ranks and alphas for modules whose names end with a key.
  std::map<std::string, int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  std::vector<std::string> modules_to_save;  // trained whole, and kept with the adapter

  bool operator==(const AdapterSpec&) const = default;
};

// The model's table, frozen but for modules_to_save, and behind it the adapters' tensors, with the names that PEFT
// gives them in adapter_model.safetensors. Throws base::Error naming what matches nothing or cannot have an adapter.
std::vector<ParameterSpec> make_adapter_table(const ModelSpec& model, const AdapterSpec& adapter);
// A rank's share of that table. Adapters follow the weights they stand beside: where rows are cut so are those of b,
// where columns are those of a; ParameterSpec::adapter is of the local rows.
std::vector<LocalParameter> local_table(const ModelSpec& model, const std::vector<ParameterSpec>& table,
                                        const TensorLayout& layout, const TensorPlace& place);
// Whether a tensor of it is kept with the adapter.
inline bool is_adapter_tensor(const ParameterSpec& p) { return p.trainable || p.adapter.term != AdapterTerm::none; }

// What PEFT puts before a model's own names.
inline constexpr const char* kPeftPrefix = "base_model.model.";

}  // namespace sinter::spec
