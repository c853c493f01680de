// What a model is, as plain data: every family is a setting of these fields, and one transformer definition reads them.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace sinter::spec {

enum class Family { gpt2, llama, mistral, qwen2, qwen3, mixtral, qwen3_moe };
enum class NormKind { rms, layer };
enum class Activation { silu, gelu, gelu_tanh, relu };
enum class RopeKind { none, standard, linear, dynamic, llama3, yarn };

// Rotary position embedding and its scaling, named as in Hugging Face configs.
struct RopeSpec {
  RopeKind kind = RopeKind::none;
  double theta = 10000.0;
  double factor = 1.0;
  int64_t original_max_positions = 0;  // llama3, yarn: trained length before scaling; dynamic: max_positions
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  double mscale = 0.0;                 // yarn: 0 = not given
  double mscale_all_dim = 0.0;         // yarn: 0 = not given
  double attention_factor = 0.0;       // yarn: 0 = derived from factor
  bool truncate = true;                // yarn: round the correction range to whole dimensions
  std::vector<float> divisors;         // of each pair's speed (D / 2), as some GGUF files list them; empty: none
};

// Mixture of experts; num_experts == 0 means every layer is dense.
struct MoeSpec {
  int64_t num_experts = 0;        // E
  int64_t experts_per_token = 0;  // top-k
  int64_t ffn = 0;                // hidden width of one expert
  bool norm_topk_prob = true;     // divide the chosen probabilities by their sum
  float balance_loss = 0.0f;      // coefficient of the load-balancing loss of each layer
};

struct DropoutSpec {
  float embedding = 0.0f, residual = 0.0f, attention = 0.0f;
};

struct ModelSpec {
  Family family = Family::llama;
  int64_t vocab_size = 0;     // V
  int64_t hidden = 0;         // C
  int64_t num_layers = 0;     // L
  int64_t num_heads = 0;      // H
  int64_t num_kv_heads = 0;   // K
  int64_t head_dim = 0;       // D; H * D need not equal C
  int64_t ffn = 0;            // F, width of a dense layer's MLP
  int64_t max_positions = 0;  // trained context length; rows of the position table where there is one

  NormKind norm = NormKind::rms;
  float norm_eps = 1e-5f;
  Activation activation = Activation::silu;
  bool gated_mlp = true;           // act(gate) * up, else act(up)
  bool learned_positions = false;  // GPT-2's position table
  bool tied_head = false;
  bool qkv_bias = false, out_bias = false, mlp_bias = false;
  bool qk_norm = false;          // RMSNorm over each head of Q and K
  float attention_scale = 0.0f;  // 0 = 1/sqrt(D)
  bool scale_by_layer = false;   // GPT-2: divide the scale by (layer + 1)
  std::vector<int64_t> window;   // per layer: keys a query sees, itself included; 0 = all. Empty = all layers 0

  RopeSpec rope;
  MoeSpec moe;
  std::vector<uint8_t> sparse_layers;  // per layer: 1 = mixture of experts. Empty = all dense
  DropoutSpec dropout;
  int64_t mtp_heads = 0;  // multi-token prediction: extra blocks on the trunk; head j predicts j + 2 tokens ahead

  float init_std = 0.02f;
  int64_t bos_token = -1, pad_token = -1;
  std::vector<int64_t> eos_tokens;

  int64_t q_width() const { return num_heads * head_dim; }
  int64_t kv_width() const { return num_kv_heads * head_dim; }
  int64_t qkv_width() const { return q_width() + 2 * kv_width(); }
  bool is_sparse(int64_t layer) const {
    return !sparse_layers.empty() && layer < num_layers && sparse_layers[static_cast<size_t>(layer)] != 0;
  }
  int64_t window_of(int64_t layer) const {
    return window.empty() || layer >= num_layers ? 0 : window[static_cast<size_t>(layer)];
  }
  float scale_of(int64_t layer) const;
};

const char* family_name(Family family);
// Throws base::Error naming the field when sizes are missing, negative or do not fit each other.
void check_model_spec(const ModelSpec& spec);

}  // namespace sinter::spec
