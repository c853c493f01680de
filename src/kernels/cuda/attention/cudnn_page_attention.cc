// cuDNN's attention over pages for pieces of queries (page_attention.h): queries and results are ragged, keys lie in
// pages, and the mask is causal from the end of each piece's keys.
#include <map>

#include "base/error.h"
#include "kernels/cuda/attention/cudnn_graph.h"
#include "kernels/cuda/attention/page_attention.h"

namespace sinter::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kO,
  kQueryLengths,
  kKeyLengths,
  kQueryPlaces,
  kOutputPlaces,
  kKeyTable,
  kValueTable
};

// As if pages held so many tokens in all: only those that tables name are read.
constexpr int64_t kMostTokens = int64_t{1} << 23;

CudnnGraph build(const PieceShape& s, cudnnHandle_t handle) {
  auto graph = new_cudnn_graph(s.dtype);
  using Tensor = fe::graph::Tensor_attributes;
  auto ragged_rows = [&](Tensor& t, int64_t uid, int64_t width, const std::shared_ptr<Tensor>& places) {
    t.set_uid(uid)
        .set_dim({s.pieces, s.heads, kPieceQueries, s.dim})
        .set_stride({kPieceQueries * width, s.dim, width, 1})
        .set_ragged_offset(places);
  };
  auto pages = [&](const char* name, int64_t uid) {
    return graph->tensor(Tensor()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim({kMostTokens / s.page_tokens, s.kv_heads, s.page_tokens, s.dim})
                             .set_stride({s.page_stride, s.head_stride, s.token_stride, 1}));
  };
  auto table = [&](const char* name, int64_t uid) {
    const int64_t width = s.table_width();
    return graph->tensor(Tensor()
                             .set_name(name)
                             .set_uid(uid)
                             .set_dim({s.pieces, 1, width, 1})
                             .set_stride({width, width, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  };
  auto q = graph->tensor(Tensor().set_name("q"));
  ragged_rows(*q, kQ, s.row_width,
              cudnn_integers(*graph, "query places", kQueryPlaces, s.pieces + 1, fe::DataType_t::INT64));
  auto k = pages("k", kK), v = pages("v", kV);
  auto attributes = fe::graph::SDPA_attributes().set_name("attention").set_generate_stats(false);
  attributes.set_attn_scale(s.scale)
      .set_padding_mask(true)
      .set_seq_len_q(cudnn_integers(*graph, "query lengths", kQueryLengths, s.pieces, fe::DataType_t::INT32))
      .set_seq_len_kv(cudnn_integers(*graph, "key lengths", kKeyLengths, s.pieces, fe::DataType_t::INT32))
      .set_causal_mask_bottom_right(true)
      .set_paged_attention_k_table(table("key table", kKeyTable))
      .set_paged_attention_v_table(table("value table", kValueTable))
      .set_paged_attention_max_seq_len_kv(static_cast<int>(s.keys));
  if (s.window > 0) attributes.set_diagonal_band_left_bound(static_cast<int>(s.window));
  auto [o, stats] = graph->sdpa(q, k, v, attributes);
  o->set_output(true);
  ragged_rows(*o, kO, s.heads * s.dim,
              cudnn_integers(*graph, "output places", kOutputPlaces, s.pieces + 1, fe::DataType_t::INT64));
  return build_cudnn_graph(
      std::move(graph), handle,
      fmt::format("{} pieces over {} keys in pages of {}, {} over {} heads of {}{}", s.pieces, s.keys, s.page_tokens,
                  s.heads, s.kv_heads, s.dim, s.window > 0 ? fmt::format(", window {}", s.window) : ""));
}

CudnnGraph& graph_for(Stream& stream, const PieceShape& shape) {
  static std::map<PieceShape, CudnnGraph> graphs;
  auto found = graphs.find(shape);
  if (found == graphs.end()) found = graphs.emplace(shape, build(shape, cudnn_handle(stream))).first;
  return found->second;
}

int64_t calls = 0;

}  // namespace

bool find_piece_kernel(Stream& stream, const PieceShape& shape, size_t& workspace_bytes) {
  if (!options().cudnn || compute_capability(stream.device) < 90) return false;
  std::lock_guard lock(cudnn_mutex());
  const CudnnGraph& graph = graph_for(stream, shape);
  workspace_bytes = graph.workspace_bytes;
  return graph.graph != nullptr;
}

void piece_attention(Stream& stream, const PieceCall& call) {
  std::lock_guard lock(cudnn_mutex());
  auto mutable_pointer = [](const void* p) { return const_cast<void*>(p); };
  std::unordered_map<int64_t, void*> pointers = {{kQ, mutable_pointer(call.queries)},
                                                 {kK, mutable_pointer(call.keys)},
                                                 {kV, mutable_pointer(call.values)},
                                                 {kO, call.out},
                                                 {kQueryLengths, call.pieces.query_lengths},
                                                 {kKeyLengths, call.pieces.key_lengths},
                                                 {kQueryPlaces, call.pieces.query_places},
                                                 {kOutputPlaces, call.pieces.output_places},
                                                 {kKeyTable, call.pieces.tables},
                                                 {kValueTable, call.pieces.tables}};
  run_cudnn_graph(stream, graph_for(stream, call.shape), pointers, call.workspace);
  ++calls;
}

int64_t num_piece_calls() {
  std::lock_guard lock(cudnn_mutex());
  return calls;
}

}  // namespace sinter::kernels::cuda
