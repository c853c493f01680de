#include "spec/local_table.h"

#include <algorithm>

#include "base/error.h"
#include "spec/adapter.h"

namespace sinter::spec {
namespace {

using base::Shape;

Shape zeros_like(const Shape& shape) {
  Shape zeros = shape;
  for (int axis = 0; axis < shape.rank(); ++axis) zeros.set(axis, 0);
  return zeros;
}

// A stretch of one axis of a global tensor.
struct Piece {
  int64_t begin = 0, size = 0;
  bool is_owned = true;
};

// Cuts tensors of one rank.
class Cutter {
 public:
  Cutter(const ModelSpec& spec, const std::vector<ParameterSpec>& table, const TensorLayout& layout,
         const TensorPlace& place)
      : spec_(spec), table_(table), layout_(layout), place_(place), heads_(local_heads(spec, layout.tp, place.tp)) {}

  LocalParameter cut(const ParameterSpec& global, bool is_owned) const {
    LocalParameter local{global, global.shape, {{zeros_like(global.shape), global.shape, zeros_like(global.shape)}}, 1};
    const bool has_experts = global.expert_axis >= 0;
    if (has_experts)
      cut_axis(local, global.expert_axis, {slice(global.shape[global.expert_axis], layout_.ep, place_.ep)});
    if (global.tp_axis >= 0) {
      cut_axis(local, global.tp_axis, tensor_pieces(global));
      if (is_vocabulary(global)) local.info.shape.set(0, vocabulary().padded);
    } else if (place_.tp != 0) {
      is_owned = false;
    }
    if (!has_experts && place_.ep != 0) is_owned = false;
    if (is_qkv(global) && layout_.tp > spec_.num_kv_heads) local.gradient_parts = layout_.tp / spec_.num_kv_heads;
    if (is_head_norm(global)) local.gradient_parts = layout_.tp;
    if (global.adapter.term != AdapterTerm::none) place_adapter(local);
    for (Box& box : local.boxes) box.is_owned = box.is_owned && is_owned;
    return local;
  }

 private:
  static Piece slice(int64_t size, int64_t parts, int64_t part) {
    SINTER_CHECK(size % parts == 0, "[layout] an axis of {} cannot be cut into {} equal parts", size, parts);
    return {part * (size / parts), size / parts};
  }
  static bool ends_with(const ParameterSpec& p, const char* suffix) { return p.name.ends_with(suffix); }
  static bool is_qkv(const ParameterSpec& p) {
    return ends_with(p, "attention.qkv.weight") || ends_with(p, "attention.qkv.bias");
  }
  static bool is_head_norm(const ParameterSpec& p) {
    return ends_with(p, "attention.q_norm.weight") || ends_with(p, "attention.k_norm.weight");
  }
  static bool is_vocabulary(const ParameterSpec& p) {
    return p.role == ParameterRole::embedding || p.role == ParameterRole::head;
  }
  bool is_gate_up(const ParameterSpec& p) const {
    if (p.role == ParameterRole::expert_matrix) return ends_with(p, "moe.up.weight");
    return spec_.gated_mlp && (ends_with(p, "mlp.up.weight") || ends_with(p, "mlp.up.bias"));
  }
  VocabRange vocabulary() const { return vocab_range(spec_.vocab_size, layout_.tp, place_.tp); }

  const ParameterSpec& target_of(const AdapterPlace& place) const {
    const auto found =
        std::find_if(table_.begin(), table_.end(), [&](const auto& p) { return p.name == place.target; });
    SINTER_CHECK(found != table_.end(), "[layout] an adapter stands beside '{}', which is not here", place.target);
    return *found;
  }
  // Of rows [begin, end) of a weight this rank's, counted from `begin`.
  std::vector<Piece> rows_within(const ParameterSpec& weight, int64_t begin, int64_t end) const {
    std::vector<Piece> rows;
    for (const Piece& piece : tensor_pieces(weight)) {
      const int64_t first = std::max(piece.begin, begin), last = std::min(piece.begin + piece.size, end);
      if (first < last) rows.push_back({first - begin, last - first, piece.is_owned});
    }
    return rows;
  }
  // The rows of the local weight that an adapter stands beside.
  void place_adapter(LocalParameter& local) const {
    AdapterPlace& place = local.info.adapter;
    const ParameterSpec& weight = target_of(place);
    if (weight.tp_axis != 0 || is_vocabulary(weight)) return;
    auto count = [&](int64_t begin, int64_t end) {
      int64_t sum = 0;
      for (const Piece& piece : rows_within(weight, begin, end)) sum += piece.size;
      return sum;
    };
    const int64_t first = place.first_row, end = first + place.rows;
    place.first_row = count(0, first);
    place.rows = count(first, end);
  }

  // What of the tensor axis of a tensor is this rank's.
  std::vector<Piece> tensor_pieces(const ParameterSpec& p) const {
    const AdapterPlace& place = p.adapter;
    if (place.term != AdapterTerm::none && p.tp_axis == 0)
      return rows_within(target_of(place), place.first_row, place.first_row + place.rows);
    const int64_t size = p.shape[p.tp_axis], D = spec_.head_dim;
    if (is_vocabulary(p)) return {{vocabulary().begin, vocabulary().count}};
    if (is_qkv(p)) {
      const bool owns_kv = layout_.tp <= spec_.num_kv_heads || place_.tp % (layout_.tp / spec_.num_kv_heads) == 0;
      const int64_t keys = spec_.q_width(), values = keys + spec_.kv_width();
      return {{heads_.first_head * D, heads_.num_heads * D},
              {keys + heads_.first_kv_head * D, heads_.num_kv_heads * D, owns_kv},
              {values + heads_.first_kv_head * D, heads_.num_kv_heads * D, owns_kv}};
    }
    if (is_gate_up(p)) {
      const Piece half = slice(size / 2, layout_.tp, place_.tp);
      return {half, {size / 2 + half.begin, half.size}};
    }
    return {slice(size, layout_.tp, place_.tp)};
  }

  // Leaves of an axis the pieces, one after the other. The tensor's boxes cover the whole axis so far.
  static void cut_axis(LocalParameter& local, int axis, const std::vector<Piece>& pieces) {
    std::vector<Box> boxes;
    int64_t size = 0;
    for (const Box& whole : local.boxes) {
      size = 0;
      for (const Piece& piece : pieces) {
        Box box = whole;
        box.begin.set(axis, piece.begin);
        box.size.set(axis, piece.size);
        box.local.set(axis, size);
        box.is_owned = whole.is_owned && piece.is_owned;
        size += piece.size;
        if (piece.size > 0) boxes.push_back(box);
      }
    }
    local.info.shape.set(axis, size);
    local.boxes = std::move(boxes);
  }

  const ModelSpec& spec_;
  const std::vector<ParameterSpec>& table_;
  const TensorLayout& layout_;
  const TensorPlace& place_;
  const LocalHeads heads_;
};

}  // namespace

LayerRange TensorLayout::layers_of(int64_t num_layers, int64_t stage) const {
  if (stages.empty()) return layers_of_stage(num_layers, pp * interleave, stage);
  SINTER_CHECK(static_cast<int64_t>(stages.size()) == pp * interleave, "[layout] {} stages for pp {} x interleave {}",
               stages.size(), pp, interleave);
  return stages[static_cast<size_t>(stage)];
}

LocalHeads local_heads(const ModelSpec& spec, int64_t tp, int64_t rank) {
  const int64_t H = spec.num_heads / tp, K = std::max<int64_t>(1, spec.num_kv_heads / tp);
  return {H, K, rank * H, tp <= spec.num_kv_heads ? rank * K : rank * spec.num_kv_heads / tp};
}

VocabRange vocab_range(int64_t vocab_size, int64_t tp, int64_t rank) {
  constexpr int64_t kStep = 8;  // products of 16-bit formats want rows in steps of 16 bytes
  if (tp == 1) return {0, vocab_size, vocab_size};
  const int64_t padded = (vocab_size + tp * kStep - 1) / (tp * kStep) * kStep;
  const int64_t begin = std::min(rank * padded, vocab_size);
  return {begin, std::min(vocab_size - begin, padded), padded};
}

std::vector<LocalParameter> local_table(const ModelSpec& spec, const TensorLayout& layout, const TensorPlace& place) {
  return local_table(spec, make_parameter_table(spec), layout, place);
}

std::vector<LocalParameter> local_table(const ModelSpec& spec, const std::vector<ParameterSpec>& all,
                                        const TensorLayout& layout, const TensorPlace& place) {
  const Cutter cutter(spec, all, layout, place);
  const int64_t num_stages = layout.pp * layout.interleave;
  const bool is_first = place.pp == 0, is_last = place.pp == layout.pp - 1;
  auto holds_layer = [&](int64_t layer) {
    for (int64_t stage = place.pp; stage < num_stages; stage += layout.pp) {
      const LayerRange range = layout.layers_of(spec.num_layers, stage);
      if (layer >= range.begin && layer < range.begin + range.count) return true;
    }
    return false;
  };
  std::vector<LocalParameter> table;
  for (const ParameterSpec& p : all) {
    const bool is_tied_copy = p.role == ParameterRole::embedding && spec.tied_head && is_last && !is_first;
    const bool is_here = p.layer < 0                 ? is_first || is_tied_copy
                         : p.layer < spec.num_layers ? holds_layer(p.layer)
                                                     : is_last;
    if (is_here) table.push_back(cutter.cut(p, !is_tied_copy));
  }
  return table;
}

std::vector<LocalParameter> whole_table(std::vector<ParameterSpec> table) {
  std::vector<LocalParameter> whole;
  for (ParameterSpec& p : table) {
    const Shape shape = p.shape;
    whole.push_back({std::move(p), shape, {{zeros_like(shape), shape, zeros_like(shape)}}, 1});
  }
  return whole;
}

std::vector<LocalParameter> whole_table(const ModelSpec& spec) { return local_table(spec, {}, {}); }

void visit_runs(const Box& box, const Shape& global_shape, const Shape& local_shape, const VisitRun& visit) {
  const int rank = global_shape.rank();
  // The last axes that the box covers whole in both tensors belong to one stretch.
  int inner = rank - 1;
  int64_t count = box.size[inner];
  while (inner > 0 && box.size[inner] == global_shape[inner] && box.size[inner] == local_shape[inner])
    count *= box.size[--inner];
  Shape index = zeros_like(box.size);
  for (;;) {
    int64_t global = 0, local = 0;
    for (int axis = 0; axis < rank; ++axis) {
      global = global * global_shape[axis] + box.begin[axis] + index[axis];
      local = local * local_shape[axis] + box.local[axis] + index[axis];
    }
    visit(global, local, count);
    int axis = inner - 1;
    while (axis >= 0 && index[axis] + 1 == box.size[axis]) index.set(axis--, 0);
    if (axis < 0) return;
    index.set(axis, index[axis] + 1);
  }
}

}  // namespace sinter::spec
