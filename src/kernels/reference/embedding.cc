#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// The row of a table that `indices[t]` names.
int64_t row_of(const Tensor& indices, int64_t t, const Tensor& table, const char* what) {
  int64_t row = indices.data<int32_t>()[t];
  SINTER_CHECK(row >= 0 && row < table.size(0),
               "[embedding] {} {} at place {} of the batch; the table has rows 0 to {}", what, row, t,
               table.size(0) - 1);
  return row;
}

}  // namespace

void embedding_forward(Stream&, const EmbeddingForwardArgs& args) {
  FloatView table(args.table), position_table(args.position_table), y(args.y);
  int64_t channels = args.y.size(-1);
  for (int64_t t = 0; t < args.tokens.num_elements(); ++t) {
    int64_t row = row_of(args.tokens, t, args.table, "token");
    int64_t position = position_table ? row_of(args.positions, t, args.position_table, "position") : 0;
    for (int64_t c = 0; c < channels; ++c) {
      y.set(t * channels + c,
            table[row * channels + c] + (position_table ? position_table[position * channels + c] : 0.0));
    }
  }
}

void embedding_backward(Stream&, const EmbeddingBackwardArgs& args) {
  FloatView dy(args.dy), dtable(args.dtable), dposition_table(args.dposition_table);
  int64_t channels = args.dy.size(-1);
  for (int64_t t = 0; t < args.tokens.num_elements(); ++t) {
    if (dtable) {
      int64_t row = row_of(args.tokens, t, args.dtable, "token");
      for (int64_t c = 0; c < channels; ++c) dtable.add(row * channels + c, dy[t * channels + c]);
    }
    if (!dposition_table) continue;
    int64_t position = row_of(args.positions, t, args.dposition_table, "position");
    for (int64_t c = 0; c < channels; ++c) dposition_table.add(position * channels + c, dy[t * channels + c]);
  }
}

void row_noise(Stream&, const RowNoiseArgs& args) {
  FloatView scales(args.scales), y(args.y);
  const int64_t C = args.y.size(-1);
  for_each_index(args.y.rows(), [&](int64_t r) {
    if (scales[r] == 0) return;
    const auto* halves = reinterpret_cast<const uint32_t*>(args.streams.data<int32_t>()) + 2 * r;
    const base::CounterRng rng{0, uint64_t{halves[1]} << 32 | halves[0]};
    for (int64_t c = 0; c < C; ++c)
      y.set(r * C + c, y[r * C + c] + scales[r] * (2.0 * rng.uniform(static_cast<uint64_t>(c)) - 1.0));
  });
}

}  // namespace sinter::kernels::reference
