// Table look-up and its gradient. The gradient adds a row's contributions in the order of the tokens, whatever the
// threads: places are sorted by table row, and one thread handles all places of a row.
#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/embedding.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

template <class T>
void embedding_rows(const EmbeddingForwardArgs& args) {
  size_t channels = static_cast<size_t>(args.y.size(-1));
  for_each_row(args.tokens.num_elements(), args.y.size(-1), [&](int64_t t) {
    const T* row = args.table.data<T>() + static_cast<size_t>(args.tokens.data<int32_t>()[t]) * channels;
    T* y = args.y.data<T>() + static_cast<size_t>(t) * channels;
    if (!args.position_table) {
      std::memcpy(y, row, channels * sizeof(T));
      return;
    }
    const T* position =
        args.position_table.data<T>() + static_cast<size_t>(args.positions.data<int32_t>()[t]) * channels;
    for_vectors(channels, [&](size_t i, size_t n)
                              HWY_ATTR { store_n(hn::Add(load_n(row + i, n), load_n(position + i, n)), y + i, n); });
  });
}

HWY_INLINE double row_squares(const float* row, size_t channels) {
  Floats sum = zero();
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
    Floats v = load_n(row + i, n);
    sum = hn::MulAdd(v, v, sum);
  });
  return sum_lanes(sum);
}

// order: places sorted by (row, place); runs: where each row's places begin in it, plus the end. changes (runs) or
// null: of each row's sum of squares.
template <class T>
void embedding_gradient_rows(const Tensor& dy, const Tensor& indices, const std::vector<int32_t>& order,
                             const std::vector<int32_t>& runs, const Tensor& dtable, double* changes) {
  size_t channels = static_cast<size_t>(dy.size(-1));
  int64_t count = static_cast<int64_t>(runs.size()) - 1;
  for_each_row(count, dy.size(-1), [&](int64_t run) {
    float* out = dtable.data<float>() + static_cast<size_t>(indices.data<int32_t>()[order[runs[run]]]) * channels;
    if (changes) changes[run] = -row_squares(out, channels);
    for (int32_t at = runs[run]; at < runs[run + 1]; ++at) {
      const T* row = dy.data<T>() + static_cast<size_t>(order[at]) * channels;
      for_vectors(channels, [&](size_t i, size_t n)
                                HWY_ATTR { store_n(hn::Add(load_n(out + i, n), load_n(row + i, n)), out + i, n); });
    }
    if (changes) changes[run] += row_squares(out, channels);
  });
}

void embedding_forward_any(const EmbeddingForwardArgs& args) {
  with_format(args.y.dtype(), "embedding_forward", [&]<class T>(T) { embedding_rows<T>(args); });
}
void embedding_gradient_any(const Tensor& dy, const Tensor& indices, const std::vector<int32_t>& order,
                            const std::vector<int32_t>& runs, const Tensor& dtable, double* changes) {
  with_format(dy.dtype(), "embedding_backward",
              [&]<class T>(T) { embedding_gradient_rows<T>(dy, indices, order, runs, dtable, changes); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(embedding_forward_any);
HWY_EXPORT(embedding_gradient_any);

namespace {

void check_rows(const Tensor& indices, const Tensor& table, const char* what) {
  for (int64_t t = 0; t < indices.num_elements(); ++t) {
    int64_t row = indices.data<int32_t>()[t];
    SINTER_CHECK(row >= 0 && row < table.size(0),
                 "[embedding] {} {} at place {} of the batch; the table has rows 0 to {}", what, row, t,
                 table.size(0) - 1);
  }
}

void add_gradient(const Tensor& dy, const Tensor& indices, const Tensor& dtable, const Tensor& squares) {
  std::vector<int32_t> order(static_cast<size_t>(indices.num_elements())), runs;
  const int32_t* row = indices.data<int32_t>();
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return row[a] < row[b]; });
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || row[order[i]] != row[order[i - 1]]) runs.push_back(static_cast<int32_t>(i));
  }
  runs.push_back(static_cast<int32_t>(order.size()));
  std::vector<double> changes(squares ? runs.size() - 1 : 0);
  HWY_DYNAMIC_DISPATCH(embedding_gradient_any)
  (dy, indices, order, runs, dtable, squares ? changes.data() : nullptr);
  if (!squares) return;
  float& sum = squares.data<float>()[0];
  const double exact = std::accumulate(changes.begin(), changes.end(), static_cast<double>(sum));
  sum = static_cast<float>(exact < 0 ? 0 : exact);  // rows that became 0 leave rounding behind; NaN stays
}

}  // namespace

void embedding_forward(Stream&, const EmbeddingForwardArgs& args) {
  check_rows(args.tokens, args.table, "token");
  if (args.position_table) check_rows(args.positions, args.position_table, "position");
  HWY_DYNAMIC_DISPATCH(embedding_forward_any)(args);
}

void embedding_backward(Stream&, const EmbeddingBackwardArgs& args) {
  if (args.dtable) {
    check_rows(args.tokens, args.dtable, "token");
    add_gradient(args.dy, args.tokens, args.dtable, args.dtable_squares);
  }
  if (!args.dposition_table) return;
  check_rows(args.positions, args.dposition_table, "position");
  add_gradient(args.dy, args.positions, args.dposition_table, {});
}

}  // namespace sinter::kernels::cpu
#endif
