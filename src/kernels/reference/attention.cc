// Causal attention, one query row at a time.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kv_format.h"
#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// One sequence of the batch.
struct Sequence {
  int64_t index, first_row, num_queries, context;
};

std::vector<Sequence> sequences_of(const RaggedBatch& batch, bool is_paged) {
  std::vector<Sequence> all;
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    int64_t first = batch.offsets.data<int32_t>()[s], count = batch.offsets.data<int32_t>()[s + 1] - first;
    all.push_back({s, first, count, is_paged ? batch.contexts.data<int32_t>()[s] : count});
  }
  return all;
}

// Where the query at `position` starts to see keys.
int64_t first_key(const AttentionShape& shape, int64_t position) {
  return shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
}

// 1 / (1 - p) where the probability is kept, else 0.
double dropout_factor(const AttentionShape& shape, int64_t head, int64_t row, int64_t key) {
  if (shape.dropout == 0) return 1.0;
  uint64_t index = shape.first_dropped(head, row) + static_cast<uint64_t>(key);
  return rng_of(shape.key).uniform(index) >= shape.dropout ? 1.0 / (1.0 - shape.dropout) : 0.0;
}

// Reads keys and values of a sequence, from the packed rows or from the paged cache.
struct KeyReader {
  const AttentionForwardArgs& args;
  FloatView qkv, keys, values;
  explicit KeyReader(const AttentionForwardArgs& a)
      : args(a), qkv(a.qkv), keys(numbers(a.cache.keys)), values(numbers(a.cache.values)) {}

  // The cache whole, whatever its strides.
  static FloatView numbers(const Tensor& t) {
    if (!t || core::has_row_scales(t.dtype())) return FloatView(Tensor());
    return FloatView(Tensor::view_of(t.raw(), {std::numeric_limits<int64_t>::max() / 8}, t.dtype(), t.device()));
  }
  static double scale_of(const Tensor& scales, int64_t kv_head) {
    return scales ? static_cast<double>(scales.data<float>()[kv_head]) : 1.0;
  }

  double key(const Sequence& s, int64_t j, int64_t kv_head, int64_t d) const {
    if (core::has_row_scales(args.cache.keys.dtype())) return stored_number(args.cache.keys, s, j, kv_head, d);
    if (keys) return scale_of(args.cache.key_scales, kv_head) * keys[cache_index(s, j, kv_head, d)];
    return qkv[packed_index(s, j, args.shape.num_heads + kv_head, d)];
  }
  double value(const Sequence& s, int64_t j, int64_t kv_head, int64_t d) const {
    int64_t head = args.shape.num_heads + args.shape.num_kv_heads + kv_head;
    if (core::has_row_scales(args.cache.values.dtype())) return stored_number(args.cache.values, s, j, kv_head, d);
    if (values) return scale_of(args.cache.value_scales, kv_head) * values[cache_index(s, j, kv_head, d)];
    return qkv[packed_index(s, j, head, d)];
  }
  double stored_number(const Tensor& t, const Sequence& s, int64_t j, int64_t kv_head, int64_t d) const {
    const uint8_t* row = t.data<uint8_t>() + cache_index(s, j, kv_head, 0);
    return core::kv_number(t.dtype(), row, args.shape.head_dim, d);
  }
  int64_t packed_index(const Sequence& s, int64_t j, int64_t head, int64_t d) const {
    return (s.first_row + j) * args.qkv.size(-1) + head * args.shape.head_dim + d;
  }
  int64_t cache_index(const Sequence& s, int64_t j, int64_t kv_head, int64_t d) const {
    int64_t block_size = args.cache.block_size;
    int64_t block = args.block_tables.data<int32_t>()[s.index * args.block_tables.size(1) + j / block_size];
    return args.cache.offset(block * block_size + j % block_size, kv_head) + d;
  }
};

}  // namespace

void attention_forward(Stream&, const AttentionForwardArgs& args) {
  const AttentionShape& shape = args.shape;
  FloatView qkv(args.qkv), out(args.out), lse(args.lse);
  KeyReader reader(args);
  int64_t heads = shape.num_heads, dim = shape.head_dim, tokens = args.qkv.size(0), width = args.qkv.size(-1);
  for (int64_t i = 0; i < out.size(); ++i) out.set(i, 0);
  for (int64_t i = 0; i < lse.size(); ++i) lse.set(i, 0);
  for (const Sequence& s : sequences_of(*args.batch, static_cast<bool>(args.cache))) {
    for_each_index(s.num_queries * heads, [&](int64_t task) {
      int64_t i = task / heads, h = task % heads, kv_head = h / (heads / shape.num_kv_heads);
      int64_t row = s.first_row + i, position = s.context - s.num_queries + i, first = first_key(shape, position);
      std::vector<double> score(static_cast<size_t>(position + 1)), sum(static_cast<size_t>(dim));
      double largest = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = first; j <= position; ++j) {
        double dot = 0;
        for (int64_t d = 0; d < dim; ++d) dot += qkv[row * width + h * dim + d] * reader.key(s, j, kv_head, d);
        score[j] = dot * shape.scale;
        largest = std::max(largest, score[j]);
      }
      for (int64_t j = first; j <= position; ++j) {
        double p = std::exp(score[j] - largest);
        total += p;
        p *= dropout_factor(shape, h, row, j);
        for (int64_t d = 0; d < dim; ++d) sum[d] += p * reader.value(s, j, kv_head, d);
      }
      for (int64_t d = 0; d < dim; ++d) out.set((row * heads + h) * dim + d, sum[d] / total);
      if (lse) lse.set(h * tokens + row, largest + std::log(total));
    });
  }
}

void attention_backward(Stream&, const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  FloatView qkv(args.qkv), out(args.out), lse(args.lse), dout(args.dout), delta(args.delta), dqkv(args.dqkv);
  int64_t heads = shape.num_heads, dim = shape.head_dim, tokens = args.qkv.size(0), width = args.qkv.size(-1);
  int64_t group = heads / shape.num_kv_heads;
  for (int64_t i = 0; i < dqkv.size(); ++i) dqkv.set(i, 0);
  for_each_index(heads * tokens, [&](int64_t task) {
    int64_t h = task / tokens, row = task % tokens;
    double sum = 0;
    for (int64_t d = 0; d < dim; ++d) sum += dout[(row * heads + h) * dim + d] * out[(row * heads + h) * dim + d];
    delta.set(task, sum);
  });
  for (const Sequence& s : sequences_of(*args.batch, false)) {
    for_each_index(shape.num_kv_heads, [&](int64_t kv_head) {
      size_t count = static_cast<size_t>(s.num_queries * dim);
      std::vector<double> dk(count), dv(count);
      int64_t k_column = (heads + kv_head) * dim, v_column = (heads + shape.num_kv_heads + kv_head) * dim;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        for (int64_t i = 0; i < s.num_queries; ++i) {
          int64_t row = s.first_row + i, q = row * width + h * dim, o = (row * heads + h) * dim;
          std::vector<double> dq(static_cast<size_t>(dim));
          for (int64_t j = first_key(shape, i); j <= i; ++j) {
            int64_t k = (s.first_row + j) * width + k_column, v = (s.first_row + j) * width + v_column;
            double score = 0, dp = 0, factor = dropout_factor(shape, h, row, j);
            for (int64_t d = 0; d < dim; ++d) {
              score += qkv[q + d] * qkv[k + d];
              dp += dout[o + d] * qkv[v + d];
            }
            double p = std::exp(score * shape.scale - lse[h * tokens + row]);
            double ds = p * (dp * factor - delta[h * tokens + row]) * shape.scale;
            for (int64_t d = 0; d < dim; ++d) {
              dq[d] += ds * qkv[k + d];
              dk[j * dim + d] += ds * qkv[q + d];
              dv[j * dim + d] += p * factor * dout[o + d];
            }
          }
          for (int64_t d = 0; d < dim; ++d) dqkv.set(q + d, dq[d]);
        }
      }
      for (int64_t j = 0; j < s.num_queries; ++j) {
        for (int64_t d = 0; d < dim; ++d) {
          dqkv.set((s.first_row + j) * width + k_column + d, dk[j * dim + d]);
          dqkv.set((s.first_row + j) * width + v_column + d, dv[j * dim + d]);
        }
      }
    });
  }
}

}  // namespace sinter::kernels::reference
