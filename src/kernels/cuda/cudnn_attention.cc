// cuDNN's flash attention for plain training batches: 16-bit formats, causal, sequences of equal length, no dropout.
// Queries, keys and values are read in place from the packed rows by their strides, and so are the gradients written.
#include <cudnn.h>
#include <cudnn_frontend.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/log.h"
#include "core/cuda/check.h"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t { kQ = 1, kK, kV, kO, kStats, kDO, kDQ, kDK, kDV };

// What a graph is built for.
struct GraphKey {
  int64_t sequences, length, heads, kv_heads, dim;
  base::DType dtype;
  float scale;
  bool is_backward, has_stats;
  auto operator<=>(const GraphKey&) const = default;
};

struct Graph {
  std::shared_ptr<fe::graph::Graph> graph;  // null: cuDNN has no engine for it
  size_t workspace_bytes = 0;
};

cudnnHandle_t handle(Stream& stream) {
  static std::map<void*, cudnnHandle_t> handles;
  cudnnHandle_t& h = handles[stream.native];
  if (!h) {
    SINTER_CHECK(cudnnCreate(&h) == CUDNN_STATUS_SUCCESS, "[attention] cuDNN could not be started on {}",
                 stream.device.to_string());
    SINTER_CHECK(cudnnSetStream(h, static_cast<cudaStream_t>(stream.native)) == CUDNN_STATUS_SUCCESS,
                 "[attention] cuDNN refused the stream");
  }
  return h;
}

// Heads of a packed (T, W) row, seen as (B, heads, length, D).
std::shared_ptr<fe::graph::Tensor_attributes> heads_of_rows(fe::graph::Graph& graph, const GraphKey& key,
                                                            const char* name, Uid uid, int64_t heads, int64_t width) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_name(name)
                          .set_uid(uid)
                          .set_dim({key.sequences, heads, key.length, key.dim})
                          .set_stride({key.length * width, key.dim, width, 1}));
}
void set_heads_of_rows(const std::shared_ptr<fe::graph::Tensor_attributes>& t, const GraphKey& key, Uid uid,
                       int64_t heads, int64_t width) {
  t->set_output(true)
      .set_uid(uid)
      .set_dim({key.sequences, heads, key.length, key.dim})
      .set_stride({key.length * width, key.dim, width, 1});
}

Graph build(const GraphKey& key, cudnnHandle_t handle) {
  Graph result;
  auto graph = std::make_shared<fe::graph::Graph>();
  graph->set_io_data_type(key.dtype == base::DType::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  int64_t width = (key.heads + 2 * key.kv_heads) * key.dim, out_width = key.heads * key.dim;
  auto q = heads_of_rows(*graph, key, "q", kQ, key.heads, width);
  auto k = heads_of_rows(*graph, key, "k", kK, key.kv_heads, width);
  auto v = heads_of_rows(*graph, key, "v", kV, key.kv_heads, width);
  if (!key.is_backward) {
    auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_attn_scale(key.scale);
    attributes.set_causal_mask(true).set_generate_stats(key.has_stats);
    auto [o, stats] = graph->sdpa(q, k, v, attributes);
    set_heads_of_rows(o, key, kO, key.heads, out_width);
    if (key.has_stats) stats->set_output(true).set_uid(kStats).set_data_type(fe::DataType_t::FLOAT);
  } else {
    auto o = heads_of_rows(*graph, key, "o", kO, key.heads, out_width);
    auto d = heads_of_rows(*graph, key, "do", kDO, key.heads, out_width);
    auto stats = graph->tensor(fe::graph::Tensor_attributes()
                                   .set_name("stats")
                                   .set_uid(kStats)
                                   .set_dim({key.sequences, key.heads, key.length, 1})
                                   .set_stride({key.heads * key.length, key.length, 1, 1})
                                   .set_data_type(fe::DataType_t::FLOAT));
    auto attributes = fe::graph::SDPA_backward_attributes().set_name("attention_backward").set_attn_scale(key.scale);
    attributes.set_causal_mask(true).set_deterministic_algorithm(options().deterministic);
    auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, d, stats, attributes);
    set_heads_of_rows(dq, key, kDQ, key.heads, width);
    set_heads_of_rows(dk, key, kDK, key.kv_heads, width);
    set_heads_of_rows(dv, key, kDV, key.kv_heads, width);
  }
  auto status = graph->build(handle, {fe::HeurMode_t::A});
  int64_t workspace = 0;
  if (status.is_good()) status = graph->get_workspace_size(workspace);
  if (!status.is_good()) {
    base::log_warning(
        "cuDNN has no attention for {} sequences of {}, {} over {} heads of {} ({}); our own kernel takes it",
        key.sequences, key.length, key.heads, key.kv_heads, key.dim, status.get_message());
    return result;
  }
  result.graph = graph;
  result.workspace_bytes = static_cast<size_t>(workspace);
  return result;
}

std::mutex graphs_mutex;

Graph& graph_for(Stream& stream, const GraphKey& key) {
  static std::map<GraphKey, Graph> graphs;
  auto found = graphs.find(key);
  if (found == graphs.end()) found = graphs.emplace(key, build(key, handle(stream))).first;
  return found->second;
}

bool applies(const AttentionShape& shape, const RaggedBatch& batch, const Tensor& qkv) {
  bool is_16_bit = qkv.dtype() == base::DType::bf16 || qkv.dtype() == base::DType::f16;
  bool sees_all = shape.window == 0 || shape.window >= batch.max_query;
  return options().cudnn && batch.equal_lengths && is_16_bit && sees_all && shape.dropout == 0 &&
         shape.head_dim % 8 == 0 && shape.head_dim <= 128 && batch.num_sequences > 0 &&
         qkv.size(0) == batch.num_sequences * batch.max_query;
}

GraphKey key_of(const AttentionShape& shape, const RaggedBatch& batch, base::DType dtype, bool is_backward,
                bool has_stats) {
  return {batch.num_sequences, batch.max_query, shape.num_heads, shape.num_kv_heads, shape.head_dim, dtype,
          shape.scale,         is_backward,     has_stats};
}

char* column(const Tensor& rows, int64_t first) {
  return rows.data<char>() + static_cast<size_t>(first) * base::dtype_bytes(rows.dtype());
}

void execute(Stream& stream, Graph& graph, std::unordered_map<int64_t, void*>& pointers, void* workspace) {
  auto status = graph.graph->execute(handle(stream), pointers, workspace);
  SINTER_CHECK(status.is_good(), "[attention] cuDNN failed: {}", status.get_message());
}

}  // namespace

// cuDNN keeps the statistics as (B, H, T), the table as (H, B T): a small permutation on the way, unless B is 1.
bool cudnn_attention_forward(Stream& stream, const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  if (args.layer_keys || !applies(shape, *args.batch, args.qkv)) return false;
  std::lock_guard lock(graphs_mutex);
  Graph& graph = graph_for(stream, key_of(shape, *args.batch, args.qkv.dtype(), false, static_cast<bool>(args.lse)));
  if (!graph.graph) return false;
  bool permutes = args.lse && args.batch->num_sequences > 1;
  size_t stats_bytes = permutes ? (args.lse.bytes() + 255) / 256 * 256 : 0;
  auto* base = static_cast<char*>(scratch(stream, Scratch::attention, stats_bytes + graph.workspace_bytes));
  int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  std::unordered_map<int64_t, void*> pointers = {
      {kQ, column(args.qkv, 0)}, {kK, column(args.qkv, q)}, {kV, column(args.qkv, q + kv)}, {kO, args.out.raw()}};
  if (args.lse) pointers[kStats] = permutes ? base : args.lse.raw();
  execute(stream, graph, pointers, base + stats_bytes);
  if (permutes) {
    permute_rows(stream, reinterpret_cast<float*>(base), args.lse.data<float>(), args.batch->num_sequences,
                 shape.num_heads, args.batch->max_query);
  }
  return true;
}

bool cudnn_attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  if (!applies(shape, *args.batch, args.qkv)) return false;
  std::lock_guard lock(graphs_mutex);
  Graph& graph = graph_for(stream, key_of(shape, *args.batch, args.qkv.dtype(), true, true));
  if (!graph.graph) return false;
  bool permutes = args.batch->num_sequences > 1;
  size_t stats_bytes = permutes ? (args.lse.bytes() + 255) / 256 * 256 : 0;
  auto* base = static_cast<char*>(scratch(stream, Scratch::attention, stats_bytes + graph.workspace_bytes));
  if (permutes) {
    permute_rows(stream, args.lse.data<float>(), reinterpret_cast<float*>(base), shape.num_heads,
                 args.batch->num_sequences, args.batch->max_query);
  }
  int64_t q = shape.num_heads * shape.head_dim, kv = shape.num_kv_heads * shape.head_dim;
  std::unordered_map<int64_t, void*> pointers = {
      {kQ, column(args.qkv, 0)},   {kK, column(args.qkv, q)},   {kV, column(args.qkv, q + kv)},
      {kO, args.out.raw()},        {kDO, args.dout.raw()},      {kStats, permutes ? base : args.lse.raw()},
      {kDQ, column(args.dqkv, 0)}, {kDK, column(args.dqkv, q)}, {kDV, column(args.dqkv, q + kv)}};
  execute(stream, graph, pointers, base + stats_bytes);
  return true;
}

}  // namespace sinter::kernels::cuda
