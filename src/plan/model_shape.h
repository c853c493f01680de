// A model boiled down to what costs memory and time: parameter sums and weight matrices per kind of block. Made once
// from the parameter table, so that a search over thousands of layouts never walks the table again.
#pragma once
#include <cstdint>
#include <vector>

#include "spec/model_spec.h"

namespace sinter::plan {

// A product with a weight matrix that every token (or every token's copy for an expert) passes through.
struct Matmul {
  enum class Cut : uint8_t { none, outputs, inputs };  // what tensor parallelism divides
  int64_t inputs = 0, outputs = 0;
  Cut cut = Cut::none;
  bool is_expert = false;
};

struct BlockShape {
  bool is_sparse = false;
  int64_t window = 0;             // keys a query sees; 0 = all
  int64_t cut_parameters = 0;     // divided by tp
  int64_t whole_parameters = 0;   // on every tp rank: norms, router, some biases
  int64_t expert_parameters = 0;  // divided by ep
  std::vector<Matmul> matmuls;

  int64_t parameters() const { return cut_parameters + whole_parameters + expert_parameters; }
};

struct ModelShape {
  int64_t vocab = 0, hidden = 0, num_layers = 0, num_heads = 0, num_kv_heads = 0;
  int64_t qk_dim = 0, v_dim = 0;  // per head; they differ only in latent attention
  int64_t kv_width = 0;           // elements of keys, and of values, that one token stores for the backward pass
  int64_t ffn = 0, moe_ffn = 0, shared_ffn = 0;
  int64_t num_experts = 0, experts_per_token = 0;
  int64_t num_mtp = 0;  // extra blocks and heads that predict further ahead
  bool gated_mlp = true, has_rope = true, tied_head = false, has_dropout = false;
  int64_t embedding_parameters = 0;  // token table
  int64_t position_parameters = 0;
  int64_t head_parameters = 0;   // 0 when tied
  int64_t final_parameters = 0;  // final norm

  std::vector<BlockShape> kinds;
  std::vector<uint8_t> kind_of_layer;  // (num_layers)

  int64_t qk_width() const { return num_heads * qk_dim; }
  int64_t v_width() const { return num_heads * v_dim; }
  const BlockShape& block(int64_t layer) const { return kinds[kind_of_layer[static_cast<size_t>(layer)]]; }
  int64_t total_parameters() const;
  // Parameters of the matrices a token is multiplied with, heads (tied or not) included and embeddings left out.
  int64_t matmul_parameters() const;
  int64_t active_parameters() const;
};

ModelShape make_model_shape(const spec::ModelSpec& model);

}  // namespace sinter::plan
