#include "plan/model_shape.h"

#include <algorithm>

#include "spec/parameters.h"

namespace sinter::plan {
namespace {

void add_attention(const spec::ModelSpec& model, BlockShape& block) {
  block.matmuls.push_back({model.hidden, model.qkv_width(), Matmul::Cut::outputs, false});
  block.matmuls.push_back({model.q_width(), model.hidden, Matmul::Cut::inputs, false});
}

void add_mlp(int64_t hidden, int64_t ffn, bool is_gated, bool is_expert, BlockShape& block) {
  block.matmuls.push_back({hidden, (is_gated ? 2 : 1) * ffn, Matmul::Cut::outputs, is_expert});
  block.matmuls.push_back({ffn, hidden, Matmul::Cut::inputs, is_expert});
}

BlockShape make_block(const spec::ModelSpec& model, int64_t layer) {
  BlockShape block;
  block.is_sparse = model.is_sparse(layer);
  block.window = model.window_of(layer);
  add_attention(model, block);
  if (block.is_sparse) {
    block.matmuls.push_back({model.hidden, model.moe.num_experts, Matmul::Cut::none, false});
    add_mlp(model.hidden, model.moe.ffn, model.gated_mlp, true, block);
  } else {
    add_mlp(model.hidden, model.ffn, model.gated_mlp, false, block);
  }
  return block;
}

}  // namespace

ModelShape make_model_shape(const spec::ModelSpec& model) {
  ModelShape shape;
  shape.vocab = model.vocab_size;
  shape.hidden = model.hidden;
  shape.num_layers = model.num_layers;
  shape.num_heads = model.num_heads;
  shape.num_kv_heads = model.num_kv_heads;
  shape.qk_dim = shape.v_dim = model.head_dim;
  shape.kv_width = model.kv_width();
  shape.ffn = model.ffn;
  shape.moe_ffn = model.moe.ffn;
  shape.num_experts = model.moe.num_experts;
  shape.experts_per_token = model.moe.experts_per_token;
  shape.num_mtp = model.mtp_heads;
  shape.gated_mlp = model.gated_mlp;
  shape.has_rope = model.rope.kind != spec::RopeKind::none;
  shape.tied_head = model.tied_head;
  shape.has_dropout = model.dropout.residual > 0 || model.dropout.attention > 0;

  // Blocks of the same kind have the same tensors: only the first of each kind is summed from the table.
  std::vector<int64_t> first_of_kind;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    auto same = [&](const BlockShape& kind) {
      return kind.is_sparse == model.is_sparse(layer) && kind.window == model.window_of(layer);
    };
    auto found = std::find_if(shape.kinds.begin(), shape.kinds.end(), same);
    shape.kind_of_layer.push_back(static_cast<uint8_t>(found - shape.kinds.begin()));
    if (found == shape.kinds.end()) {
      shape.kinds.push_back(make_block(model, layer));
      first_of_kind.push_back(layer);
    }
  }
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model)) {
    int64_t count = p.num_elements();
    if (p.role == spec::ParameterRole::embedding) shape.embedding_parameters += count;
    if (p.role == spec::ParameterRole::position) shape.position_parameters += count;
    if (p.role == spec::ParameterRole::head) shape.head_parameters += count;
    if (p.layer == model.num_layers && p.role != spec::ParameterRole::head) shape.final_parameters += count;
    auto kind = std::find(first_of_kind.begin(), first_of_kind.end(), p.layer);
    if (kind == first_of_kind.end()) continue;
    BlockShape& block = shape.kinds[static_cast<size_t>(kind - first_of_kind.begin())];
    if (p.expert_axis >= 0) {
      block.expert_parameters += count;
    } else if (p.tp_axis >= 0) {
      block.cut_parameters += count;
    } else {
      block.whole_parameters += count;
    }
  }
  return shape;
}

int64_t ModelShape::total_parameters() const {
  int64_t total = embedding_parameters + position_parameters + head_parameters + final_parameters;
  for (int64_t layer = 0; layer < num_layers; ++layer) total += block(layer).parameters();
  for (int64_t head = 0; head < num_mtp; ++head) total += block(num_layers - 1).parameters();
  return total;
}

int64_t ModelShape::active_parameters() const {
  int64_t total = total_parameters();
  if (num_experts == 0) return total;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    total -= block(layer).expert_parameters / num_experts * (num_experts - experts_per_token);
  }
  return total;
}

int64_t ModelShape::matmul_parameters() const {
  int64_t total = hidden * vocab * (1 + num_mtp);
  for (int64_t i = 0; i < num_layers + num_mtp; ++i) {
    const BlockShape& shape = block(std::min(i, num_layers - 1));
    for (const Matmul& m : shape.matmuls) total += m.inputs * m.outputs * (m.is_expert ? experts_per_token : 1);
  }
  return total;
}

}  // namespace sinter::plan
