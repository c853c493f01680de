// cuDNN's flash attention for training batches: 16-bit formats, causal, no dropout. Queries, keys and values are read
// in place from the packed rows by their strides, and so are the gradients written.
//
// Sequences of unequal length are cuDNN's "ragged" tensors: a graph is built for a bound on their number, in coarse
// steps, and one on their length; lengths and places come from the device at every call, and sequences may be empty. So
// one graph serves all batches of a run, or a few do.
#include "kernels/cuda/attention/cudnn_attention.h"

#include <map>
#include <utility>

#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/cuda/attention/cudnn_graph.h"

namespace sinter::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kStats,
  kDO,
  kDQ,
  kDK,
  kDV,
  // Ragged batches only.
  kQueryLengths,
  kKeyLengths,
  kRowPlaces,
  kOutputPlaces,
  kHeadPlaces
};

// What a graph is built for.
struct GraphKey {
  int64_t sequences, length;  // exactly these, or at most
  int64_t ragged_tokens;      // rows of a ragged batch; 0: equal lengths
  int64_t heads, kv_heads, dim;
  base::DType dtype;
  float scale;
  bool is_backward, has_stats, is_deterministic;
  auto operator<=>(const GraphKey&) const = default;
};

using GraphTensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// The tensors of one graph.
class GraphTensors {
 public:
  GraphTensors(fe::graph::Graph& graph, const GraphKey& key) : graph_(graph), key_(key) {
    if (!is_ragged()) return;
    query_lengths_ = integers("query lengths", kQueryLengths, key.sequences, fe::DataType_t::INT32);
    key_lengths_ = integers("key lengths", kKeyLengths, key.sequences, fe::DataType_t::INT32);
    rows_ = integers("rows", kRowPlaces, key.sequences + 1, fe::DataType_t::INT64);
    outputs_ = integers("outputs", kOutputPlaces, key.sequences + 1, fe::DataType_t::INT64);
    heads_ = integers("heads", kHeadPlaces, key.sequences + 1, fe::DataType_t::INT64);
  }

  // Heads of packed (T, W) rows or of outputs (T, H * D), seen as (B, heads, length, D).
  enum class Rows { packed, outputs };
  GraphTensor in(const char* name, Uid uid, int64_t heads, Rows rows = Rows::packed) const {
    GraphTensor t = graph_.tensor(fe::graph::Tensor_attributes().set_name(name));
    lay_out(*t, uid, heads, rows);
    return t;
  }
  void set_out(const GraphTensor& t, Uid uid, int64_t heads, Rows rows = Rows::packed) const {
    t->set_output(true);
    lay_out(*t, uid, heads, rows);
  }
  // Of equal lengths (B, H, length), of ragged ones (H, T).
  void lay_out_stats(fe::graph::Tensor_attributes& t) const {
    t.set_uid(kStats).set_data_type(fe::DataType_t::FLOAT).set_dim({key_.sequences, key_.heads, key_.length, 1});
    if (is_ragged()) {
      t.set_stride({key_.heads * key_.ragged_tokens, key_.ragged_tokens, 1, 1}).set_ragged_offset(heads_);
    } else {
      t.set_stride({key_.heads * key_.length, key_.length, 1, 1});
    }
  }
  // What both directions say of masks and lengths.
  template <class Attributes>
  void describe(Attributes& attributes) const {
    attributes.set_attn_scale(key_.scale).set_causal_mask(true);
    if (is_ragged()) {
      attributes.set_padding_mask(true).set_seq_len_q(query_lengths_).set_seq_len_kv(key_lengths_);
    }
  }
  bool is_ragged() const { return key_.ragged_tokens > 0; }

 private:
  GraphTensor integers(const char* name, Uid uid, int64_t count, fe::DataType_t type) const {
    return cudnn_integers(graph_, name, uid, count, type);
  }
  void lay_out(fe::graph::Tensor_attributes& t, Uid uid, int64_t heads, Rows rows) const {
    int64_t width = (rows == Rows::packed ? key_.heads + 2 * key_.kv_heads : heads) * key_.dim;
    t.set_uid(uid)
        .set_dim({key_.sequences, heads, key_.length, key_.dim})
        .set_stride({key_.length * width, key_.dim, width, 1});
    if (is_ragged()) t.set_ragged_offset(rows == Rows::packed ? rows_ : outputs_);
  }

  fe::graph::Graph& graph_;
  const GraphKey& key_;
  GraphTensor query_lengths_, key_lengths_, rows_, outputs_, heads_;
};

CudnnGraph build(const GraphKey& key, cudnnHandle_t handle) {
  auto graph = new_cudnn_graph(key.dtype);
  using Rows = GraphTensors::Rows;
  GraphTensors tensors(*graph, key);
  GraphTensor q = tensors.in("q", kQ, key.heads), k = tensors.in("k", kK, key.kv_heads),
              v = tensors.in("v", kV, key.kv_heads);
  if (!key.is_backward) {
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(key.has_stats);
    tensors.describe(attributes);
    auto [o, stats] = graph->sdpa(q, k, v, attributes);
    tensors.set_out(o, kO, key.heads, Rows::outputs);
    if (key.has_stats) {
      stats->set_output(true);
      tensors.lay_out_stats(*stats);
    }
  } else {
    GraphTensor o = tensors.in("o", kO, key.heads, Rows::outputs), d = tensors.in("do", kDO, key.heads, Rows::outputs);
    GraphTensor stats = graph->tensor(fe::graph::Tensor_attributes().set_name("stats"));
    tensors.lay_out_stats(*stats);
    auto attributes = fe::graph::SDPA_backward_attributes().set_name("attention_backward");
    attributes.set_deterministic_algorithm(key.is_deterministic);
    tensors.describe(attributes);
    if (tensors.is_ragged()) {  // else the workspace is for so many sequences of the longest
      attributes.set_max_total_seq_len_q(key.ragged_tokens).set_max_total_seq_len_kv(key.ragged_tokens);
    }
    auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, d, stats, attributes);
    tensors.set_out(dq, kDQ, key.heads);
    tensors.set_out(dk, kDK, key.kv_heads);
    tensors.set_out(dv, kDV, key.kv_heads);
  }
  return build_cudnn_graph(
      std::move(graph), handle,
      fmt::format("{} sequences of {}{}, {} over {} heads of {}", key.sequences,
                  key.ragged_tokens > 0 ? "at most " : "", key.length, key.heads, key.kv_heads, key.dim));
}

CudnnGraph& graph_for(Stream& stream, const GraphKey& key) {
  static std::map<GraphKey, CudnnGraph> graphs;
  auto found = graphs.find(key);
  if (found == graphs.end()) found = graphs.emplace(key, build(key, cudnn_handle(stream))).first;
  return found->second;
}

// Documents shorter than this on average: our own kernel is faster. Measured on an H200, both directions together,
// cuDNN against our own, 12 heads of 64: documents of 97 tokens on average 1.64 ms against 2.72, of 49 2.43
// against 2.80, of 26 4.11 against 3.58.
constexpr int64_t kLeastMeanLength = 48;

// Whether cuDNN's workspace for documents grows with their tokens, as the plan has it. Before 9.6, and on sm_8x and
// sm_12x since 9.18.1, it is that of as many documents as there are, each as long as the window: gigabytes.
bool has_ragged_workspace_of_tokens(core::Device device) {
  static const size_t version = cudnnGetVersion();
  const int major = compute_capability(device) / 10;
  return version >= 90600 && (version < 91801 || (major != 8 && major != 12));
}

bool applies(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv) {
  bool is_16_bit = qkv.dtype() == base::DType::bf16 || qkv.dtype() == base::DType::f16;
  bool sees_all = shape.window == 0 || shape.window >= batch.max_query;
  bool is_plain = options().cudnn && is_16_bit && sees_all && shape.dropout == 0 && shape.head_dim <= 128;
  if (!is_plain || batch.num_sequences == 0) return false;
  if (batch.equal_lengths) {
    return shape.head_dim % 8 == 0 && qkv.size(0) == batch.num_sequences * batch.max_query;
  }
  // Query heads that share a key head: cuDNN 9.19's ragged backward reads or writes outside its tensors on an H200, for
  // every head size tried. Our own kernel takes these batches.
  if (shape.num_kv_heads < shape.num_heads) return false;
  if (!has_ragged_workspace_of_tokens(qkv.device())) return false;
  // Its deterministic backward has a workspace of all scores of so many sequences of the longest; ours has none.
  return batch.filled_sequences > 0 && batch.max_query > 1 && shape.head_dim % 16 == 0 && !options().deterministic &&
         qkv.size(0) >= kLeastMeanLength * batch.filled_sequences;
}

GraphKey key_of(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv, bool is_backward,
                bool has_stats) {
  bool equal = batch.equal_lengths;
  return {equal ? batch.num_sequences : batch.filled_sequences,
          batch.max_query,
          equal ? 0 : qkv.size(0),
          shape.num_heads,
          shape.num_kv_heads,
          shape.head_dim,
          qkv.dtype(),
          shape.scale,
          is_backward,
          has_stats,
          options().deterministic};
}

int64_t ragged_calls = 0;

// Scratch memory of a call: statistics in cuDNN's order or what a ragged batch needs, then the graph's workspace.
struct CallMemory {
  CallMemory(Stream& stream, const GraphKey& key, const CudnnGraph& graph, size_t stats_bytes) {
    size_t bytes = 0;
    auto add = [&](int64_t count, size_t element) {
      return std::exchange(bytes, bytes + (static_cast<size_t>(count) * element + 255) / 256 * 256);
    };
    const int64_t sequences = key.ragged_tokens > 0 ? key.sequences : 0;
    const size_t at_stats = add(static_cast<int64_t>(stats_bytes), 1), at_lengths = add(sequences, 4);
    const size_t at_places[] = {add(sequences + 1, 8), add(sequences + 1, 8), add(sequences + 1, 8)};
    auto* base = static_cast<char*>(scratch(stream, Scratch::attention, bytes + graph.workspace_bytes));
    auto places = [&](int i) { return reinterpret_cast<int64_t*>(base + at_places[i]); };
    stats = base + at_stats, workspace = base + bytes;
    ragged = {sequences, reinterpret_cast<int32_t*>(base + at_lengths), places(0), places(1), places(2)};
  }
  void add_places(std::unordered_map<int64_t, void*>& pointers) const {
    pointers[kQueryLengths] = pointers[kKeyLengths] = ragged.lengths;
    pointers[kRowPlaces] = ragged.rows, pointers[kOutputPlaces] = ragged.outputs;
    pointers[kHeadPlaces] = ragged.heads;
  }
  char *stats, *workspace;
  RaggedPlaces ragged;
};

char* column(const Tensor& rows, int64_t first) {
  return rows.data<char>() + static_cast<size_t>(first) * base::dtype_bytes(rows.dtype());
}

}  // namespace

// Of equal lengths cuDNN keeps the statistics as (B, H, T), the table as (H, B T): a small permutation on the way,
// unless B is 1.
bool cudnn_attention_forward(Stream& stream, const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const RaggedBatch& batch = *args.batch;
  if (args.cache || !applies(shape, batch, args.qkv)) return false;
  std::lock_guard lock(cudnn_mutex());
  const GraphKey key = key_of(shape, batch, args.qkv, false, static_cast<bool>(args.lse));
  const CudnnGraph& graph = graph_for(stream, key);
  if (!graph.graph) return false;
  bool permutes = args.lse && batch.equal_lengths && batch.num_sequences > 1;
  const CallMemory memory(stream, key, graph, permutes ? args.lse.bytes() : 0);
  int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  std::unordered_map<int64_t, void*> pointers = {
      {kQ, column(args.qkv, 0)}, {kK, column(args.qkv, q)}, {kV, column(args.qkv, q + kv)}, {kO, args.out.raw()}};
  if (args.lse) pointers[kStats] = permutes ? memory.stats : args.lse.raw();
  if (key.ragged_tokens > 0) {
    place_sequences(stream, shape, batch, memory.ragged, args.out, args.lse);
    memory.add_places(pointers);
    ++ragged_calls;
  }
  run_cudnn_graph(stream, graph, pointers, memory.workspace);
  if (permutes) {
    permute_rows(stream, reinterpret_cast<float*>(memory.stats), args.lse.data<float>(), batch.num_sequences,
                 shape.num_heads, batch.max_query);
  }
  return true;
}

bool cudnn_attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const RaggedBatch& batch = *args.batch;
  if (!applies(shape, batch, args.qkv)) return false;
  std::lock_guard lock(cudnn_mutex());
  const GraphKey key = key_of(shape, batch, args.qkv, true, true);
  const CudnnGraph& graph = graph_for(stream, key);
  if (!graph.graph) return false;
  bool permutes = batch.equal_lengths && batch.num_sequences > 1;
  const CallMemory memory(stream, key, graph, permutes ? args.lse.bytes() : 0);
  if (permutes) {
    permute_rows(stream, args.lse.data<float>(), reinterpret_cast<float*>(memory.stats), shape.num_heads,
                 batch.num_sequences, batch.max_query);
  }
  int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  std::unordered_map<int64_t, void*> pointers = {
      {kQ, column(args.qkv, 0)},   {kK, column(args.qkv, q)},   {kV, column(args.qkv, q + kv)},
      {kO, args.out.raw()},        {kDO, args.dout.raw()},      {kStats, permutes ? memory.stats : args.lse.raw()},
      {kDQ, column(args.dqkv, 0)}, {kDK, column(args.dqkv, q)}, {kDV, column(args.dqkv, q + kv)}};
  if (key.ragged_tokens > 0) {
    place_sequences(stream, shape, batch, memory.ragged, args.dqkv, {});
    memory.add_places(pointers);
    ++ragged_calls;
  }
  run_cudnn_graph(stream, graph, pointers, memory.workspace);
  return true;
}

int64_t num_ragged_cudnn_calls() {
  std::lock_guard lock(cudnn_mutex());
  return ragged_calls;
}

}  // namespace sinter::kernels::cuda
