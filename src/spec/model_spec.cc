#include "spec/model_spec.h"

#include <cmath>

#include "base/error.h"
#include "spec/families.h"

namespace sinter::spec {

float ModelSpec::scale_of(int64_t layer) const {
  float scale = attention_scale != 0.0f ? attention_scale : 1.0f / std::sqrt(static_cast<float>(head_dim));
  return scale_by_layer ? scale / static_cast<float>(layer + 1) : scale;
}

const char* family_name(Family family) { return info_of(family).name; }

namespace {

// Values by which some angle would not be a number.
void check_rope(const ModelSpec& s) {
  const RopeSpec& rope = s.rope;
  SINTER_CHECK(s.head_dim % 2 == 0, "model: RoPE needs an even head_dim, found {}", s.head_dim);
  SINTER_CHECK(std::isfinite(rope.theta) && rope.theta > 1, "model: rope_theta is {}; expected more than 1",
               rope.theta);
  if (rope.kind == RopeKind::standard) return;
  SINTER_CHECK(rope.factor >= 1 && rope.factor <= 1e6, "model: RoPE's factor is {}; expected 1 to 1e6", rope.factor);
  if (rope.kind == RopeKind::linear) return;
  SINTER_CHECK(rope.original_max_positions > 0,
               "model: RoPE's original_max_position_embeddings is {}; expected a positive number",
               rope.original_max_positions);
  SINTER_CHECK(rope.kind != RopeKind::dynamic || s.head_dim > 2, "model: dynamic RoPE needs a head_dim above 2");
  SINTER_CHECK(
      rope.kind != RopeKind::llama3 || (rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor),
      "model: RoPE's low_freq_factor is {} and high_freq_factor {}; expected 0 < low < high", rope.low_freq_factor,
      rope.high_freq_factor);
  SINTER_CHECK(rope.kind != RopeKind::yarn || (rope.beta_slow > 0 && rope.beta_fast > 0),
               "model: RoPE's beta_fast is {} and beta_slow {}; expected positive numbers", rope.beta_fast,
               rope.beta_slow);
}

}  // namespace

void check_model_spec(const ModelSpec& s) {
  auto positive = [](int64_t value, const char* name) {
    SINTER_CHECK(value > 0, "model: {} is {}; expected a positive number", name, value);
    SINTER_CHECK(value < (int64_t{1} << 40), "model: {} is {}, which no machine can hold", name, value);
  };
  positive(s.vocab_size, "vocab_size");
  positive(s.hidden, "hidden_size");
  positive(s.num_layers, "num_hidden_layers");
  positive(s.num_heads, "num_attention_heads");
  positive(s.num_kv_heads, "num_key_value_heads");
  positive(s.head_dim, "head_dim");
  positive(s.max_positions, "max_position_embeddings");
  auto real = [](int64_t value) { return static_cast<double>(value); };
  for (auto [name, rows] : {std::pair{"hidden_size", real(s.hidden)},
                            {"intermediate_size", real(s.ffn)},
                            {"an expert's intermediate_size", real(s.moe.ffn)},
                            {"vocab_size", real(s.vocab_size)},
                            {"num_attention_heads x head_dim", real(s.num_heads) * real(s.head_dim)}}) {
    SINTER_CHECK(rows * real(s.hidden) < 0x1p48,
                 "model: {} of {:.0f} with hidden_size {} makes a matrix that no machine can hold; expected fewer than "
                 "2^48 elements",
                 name, rows, s.hidden);
  }
  SINTER_CHECK(s.num_layers <= 100000, "model: {} layers; expected at most 100,000", s.num_layers);
  SINTER_CHECK(s.mtp_heads >= 0 && s.mtp_heads <= 64, "model: {} heads for tokens further ahead; expected 0 to 64",
               s.mtp_heads);
  SINTER_CHECK(s.moe.num_experts <= 65536, "model: {} experts; expected at most 65,536", s.moe.num_experts);
  SINTER_CHECK(s.num_heads % s.num_kv_heads == 0,
               "model: num_attention_heads {} is not a multiple of num_key_value_heads {}", s.num_heads,
               s.num_kv_heads);
  if (s.rope.kind != RopeKind::none) check_rope(s);
  SINTER_CHECK(std::isfinite(s.norm_eps) && s.norm_eps >= 0, "model: the norms' eps is {}; expected 0 or more",
               s.norm_eps);
  bool any_dense = s.sparse_layers.empty(), any_sparse = false;
  for (uint8_t sparse : s.sparse_layers) (sparse ? any_sparse : any_dense) = true;
  if (any_dense) positive(s.ffn, "intermediate_size");
  if (any_sparse) {
    positive(s.moe.num_experts, "num_experts");
    positive(s.moe.ffn, "moe_intermediate_size");
    SINTER_CHECK(s.moe.experts_per_token >= 1 && s.moe.experts_per_token <= s.moe.num_experts,
                 "model: num_experts_per_tok is {}; expected 1 to num_experts = {}", s.moe.experts_per_token,
                 s.moe.num_experts);
  }
  auto probability = [](float p, const char* name) {
    SINTER_CHECK(p >= 0 && p < 1, "model: {} dropout is {}; expected 0 <= p < 1", name, p);
  };
  probability(s.dropout.embedding, "embedding");
  probability(s.dropout.residual, "residual");
  probability(s.dropout.attention, "attention");
}

}  // namespace sinter::spec
