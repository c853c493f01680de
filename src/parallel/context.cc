#include "parallel/context.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace sinter::parallel {
namespace {

using core::DType;
using kernels::AttentionParts;
using kernels::AttentionShape;

constexpr int kKeysTag = 1, kGradientTag = 2;

// How many of a rank's rows stand before row `row` of the whole batch.
int64_t rows_before(int64_t row, int64_t window, int64_t ranks, int64_t rank) {
  const int64_t piece = window / (2 * ranks), within = row % window;
  auto in_piece = [&](int64_t i) { return std::clamp<int64_t>(within - i * piece, 0, piece); };
  return row / window * 2 * piece + in_piece(rank) + in_piece(2 * ranks - 1 - rank);
}

// Every row of a rank, in order.
std::vector<int32_t> rows_of(int64_t tokens, int64_t window, int64_t ranks, int64_t rank) {
  const int64_t piece = window / (2 * ranks);
  std::vector<int32_t> rows;
  for (int64_t begin = 0; begin < tokens; begin += window) {
    for (int64_t i : {rank, 2 * ranks - 1 - rank}) {
      for (int64_t r = 0; r < piece; ++r) rows.push_back(static_cast<int32_t>(begin + i * piece + r));
    }
  }
  return rows;
}

}  // namespace

std::vector<int64_t> windows_of(const spec::ModelSpec& spec) {
  std::vector<int64_t> windows{0};
  for (int64_t w : spec.window) {
    if (std::find(windows.begin(), windows.end(), w) == windows.end()) windows.push_back(w);
  }
  return windows;
}

ContextRows context_rows(const core::HostBatch& whole, int64_t window, const std::vector<int64_t>& windows,
                         int64_t ranks, int64_t rank) {
  const int64_t tokens = whole.num_tokens();
  SINTER_CHECK(window % (2 * ranks) == 0 && tokens % window == 0,
               "[context] {} tokens in windows of {} among {} ranks; a window must be a multiple of {}", tokens, window,
               ranks, 2 * ranks);
  ContextRows out{rows_of(tokens, window, ranks, rank), windows, {}, {}, {}};
  out.key_begin.resize(windows.size());
  for (int64_t p = 0; p < ranks; ++p) {
    for (int32_t row : out.rows) {
      const int64_t before = whole.positions[static_cast<size_t>(row)];  // keys of its sequence before it
      for (size_t w = 0; w < windows.size(); ++w) {
        const int64_t seen = windows[w] > 0 ? std::min(before, windows[w] - 1) : before;
        out.key_begin[w].push_back(static_cast<int32_t>(rows_before(row - seen, window, ranks, p)));
      }
      // A window's last row is counted with the window: the next row is the next window's first.
      out.key_end.push_back(static_cast<int32_t>(rows_before(row, window, ranks, p) + (p == rank ? 1 : 0)));
    }
    for (int32_t row : rows_of(tokens, window, ranks, p))
      out.key_positions.push_back(whole.positions[static_cast<size_t>(row)]);
  }
  return out;
}

core::HostBatch take_rows(const core::HostBatch& whole, const std::vector<int32_t>& rows) {
  core::HostBatch part;
  part.offsets = whole.offsets;
  part.contexts = whole.contexts;
  for (int32_t row : rows) {
    const auto r = static_cast<size_t>(row);
    part.tokens.push_back(whole.tokens[r]);
    part.positions.push_back(whole.positions[r]);
    part.sequence_of.push_back(whole.sequence_of[r]);
    if (!whole.targets.empty()) part.targets.push_back(whole.targets[r]);
  }
  return part;
}

DeviceContextView::DeviceContextView(core::Allocator& allocator, int64_t num_tokens,
                                     const std::vector<int64_t>& windows, int64_t ranks) {
  auto make = [&](core::Shape shape) { return Tensor(allocator, shape, DType::i32); };
  view_.rows = make({num_tokens});
  for (int64_t window : windows) view_.windows.push_back({window, make({ranks, num_tokens})});
  view_.key_end = make({ranks, num_tokens});
  view_.key_positions = make({ranks, num_tokens});
}

const core::ContextView& DeviceContextView::load(const ContextRows& rows, uint64_t first_token) {
  core::DeviceRuntime& device = core::runtime(view_.rows.device());
  auto copy = [&](const Tensor& to, const std::vector<int32_t>& from) {
    SINTER_CHECK(to.num_elements() == static_cast<int64_t>(from.size()), "[context] {} numbers for {} places",
                 from.size(), to.num_elements());
    device.copy_to_device(to.raw(), from.data(), to.bytes(), device.stream());
  };
  std::vector<int32_t> numbers = rows.rows;
  for (int32_t& row : numbers) row += static_cast<int32_t>(first_token);
  copy(view_.rows, numbers);
  for (size_t w = 0; w < view_.windows.size(); ++w) copy(view_.windows[w].key_begin, rows.key_begin[w]);
  copy(view_.key_end, rows.key_end);
  copy(view_.key_positions, rows.key_positions);
  device.synchronize(device.stream());  // `numbers` goes
  return view_;
}

// One call's sizes and what its forward and backward share.
struct ContextAxis::Pass {
  const ContextAxis& axis;
  Context context;
  AttentionShape shape;
  const core::RaggedBatch* batch;
  int64_t T, P, H, K, D;

  Pass(const ContextAxis& a, const Context& c, const AttentionShape& s, const core::RaggedBatch& b)
      : axis(a),
        context(c),
        shape(s),
        batch(&b),
        T(b.num_tokens),
        P(a.size()),
        H(s.num_heads),
        K(s.num_kv_heads),
        D(s.head_dim) {}

  const Tensor& key_begin() const {
    for (const auto& w : batch->context->windows) {
      if (w.window == shape.window) return w.key_begin;
    }
    base::fail("[context] no ranges for a window of {}", shape.window);
  }
  // Keys and values of packed rows: (2, T, K D).
  void take_keys(const Tensor& qkv, const Tensor& kv) const {
    for (int64_t i : {0, 1}) {
      context.kernels.copy_columns(
          context.stream,
          {.x = qkv, .y = kv.slice(i, 1).reshape({T, K * D}), .x_first = (H + i * K) * D, .columns = K * D});
    }
  }
  AttentionParts parts(const Tensor& qkv, const Tensor& kv, int64_t from) const {
    const core::ContextView& view = *batch->context;
    AttentionParts p{.shape = shape,
                     .q = qkv,
                     .k = kv.slice(0, 1).reshape({T, K * D}),
                     .v = kv.slice(1, 1).reshape({T, K * D}),
                     .key_begin = key_begin().slice(from, 1).reshape({T}),
                     .key_end = view.key_end.slice(from, 1).reshape({T})};
    if (shape.dropout > 0) {
      p.query_rows = view.rows;
      p.key_positions = view.key_positions.slice(from, 1).reshape({T});
    }
    return p;
  }
  // Calls use(kv, from) for the keys of every rank, this one's first, then those before it around the ring.
  void visit_keys(const Tensor& own, const std::function<void(const Tensor& kv, int64_t from)>& use) const {
    comm::Communicator& group = axis.group_;
    const int64_t rank = axis.rank();
    if (axis.kind_ == spec::ContextKind::gather) {
      const Tensor all = context.make({P * 2, T, K * D}, own.dtype());
      group.all_gather(own, all);
      for (int64_t i = 0; i < P; ++i) {
        const int64_t from = (rank - i + P) % P;
        use(all.slice(2 * from, 2), from);
      }
      return;
    }
    Tensor here = own, next = context.make(own.shape(), own.dtype());
    Tensor spare = P > 2 ? context.make(own.shape(), own.dtype()) : Tensor();
    const int to = static_cast<int>((rank + 1) % P), before = static_cast<int>((rank - 1 + P) % P);
    for (int64_t i = 0; i < P; ++i) {
      comm::Handle sent, received;
      if (i + 1 < P) {
        received = group.start_receive(next, before, kKeysTag);
        sent = group.start_send(here, to, kKeysTag);
      }
      use(here, (rank - i + P) % P);
      if (received) received->wait(), sent->wait();
      Tensor used = i == 0 ? spare : here;
      here = next;
      next = used;
    }
  }
};

Variable ContextAxis::attention(const Context& context, const Variable& qkv, const Tensor& cos_sin,
                                const core::RaggedBatch& batch, const AttentionShape& shape) const {
  const Pass pass(*this, context, shape, batch);
  const int64_t T = pass.T, H = pass.H, K = pass.K, D = pass.D;
  SINTER_CHECK(qkv.value.rows() == T && qkv.value.size(-1) == (H + 2 * K) * D,
               "[context] rows are {} x {}; expected {} x {}", qkv.value.rows(), qkv.value.size(-1), T,
               (H + 2 * K) * D);
  const DType dtype = qkv.value.dtype();
  Tensor out = context.make({T, H * D}, dtype), lse = context.make({H, T}, DType::f32);
  {
    const Tensor kv = context.make({2, T, K * D}, dtype);
    const Tensor sum = context.make({T, H * D}, DType::f32), part = context.make({T, H * D}, DType::f32);
    const Tensor part_lse = context.make({H, T}, DType::f32);
    pass.take_keys(qkv.value, kv);
    bool is_first = true;
    pass.visit_keys(kv, [&](const Tensor& keys, int64_t from) {
      context.kernels.attention_partial_forward(
          context.stream,
          {.parts = pass.parts(qkv.value, keys, from), .out = is_first ? sum : part, .lse = is_first ? lse : part_lse});
      if (!is_first)
        context.kernels.attention_combine(context.stream, {.part = part, .part_lse = part_lse, .out = sum, .lse = lse});
      is_first = false;
    });
    context.kernels.axpby(context.stream, {.x = sum, .y = out, .beta = 0});
  }
  Variable result = context.make_variable(out);
  if (!context.is_recording()) return result;
  context.tape->record([pass, qkv, cos_sin, out, lse, slot = result.slot] {
    const Context& here = pass.context;
    const int64_t rows = pass.T, q = pass.H * pass.D, k = pass.K * pass.D;
    Tensor dout = ops::take_gradient(slot, "context_attention");
    Tensor dqkv = here.make(qkv.value.shape(), qkv.value.dtype());
    {
      const Tensor kv = here.make({2, rows, k}, qkv.value.dtype());
      const Tensor dq = here.make({rows, q}, DType::f32);
      here.kernels.fill(here.stream, {dq, 0.0f});
      pass.take_keys(qkv.value, kv);
      // The gradient of a rank's keys visits all ranks as the keys do, and comes home.
      comm::Communicator& group = pass.axis.group_;
      Tensor dkv = here.make({2, rows, k}, DType::f32), next = here.make({2, rows, k}, DType::f32);
      const int64_t P = pass.P, rank = pass.axis.rank();
      here.kernels.fill(here.stream, {dkv, 0.0f});
      pass.visit_keys(kv, [&](const Tensor& keys, int64_t from) {
        here.kernels.attention_partial_backward(here.stream, {.parts = pass.parts(qkv.value, keys, from),
                                                              .out = out,
                                                              .dout = dout,
                                                              .lse = lse,
                                                              .dq = dq,
                                                              .dk = dkv.slice(0, 1).reshape({rows, k}),
                                                              .dv = dkv.slice(1, 1).reshape({rows, k})});
        comm::Handle received = group.start_receive(next, static_cast<int>((rank - 1 + P) % P), kGradientTag);
        comm::Handle sent = group.start_send(dkv, static_cast<int>((rank + 1) % P), kGradientTag);
        received->wait();
        sent->wait();
        std::swap(dkv, next);
      });
      auto put = [&](const Tensor& from, int64_t column, int64_t columns) {
        here.kernels.copy_columns(here.stream, {.x = from, .y = dqkv, .y_first = column, .columns = columns});
      };
      put(dq, 0, q);
      put(dkv.slice(0, 1).reshape({rows, k}), q, k);
      put(dkv.slice(1, 1).reshape({rows, k}), q + k, k);
    }
    if (cos_sin) {
      here.kernels.rope(
          here.stream,
          {.num_rotated = pass.H + pass.K, .head_dim = pass.D, .x = dqkv, .cos_sin = cos_sin, .inverse = true});
    }
    ops::accumulate(here, qkv, std::move(dqkv));
  });
  return result;
}

}  // namespace sinter::parallel
