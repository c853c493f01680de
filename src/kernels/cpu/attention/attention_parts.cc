// Attention to keys and values that lie elsewhere, in parts (ring attention). Rows become floats once; then a query row
// walks the keys it sees, and in backward a key row the queries that see it, each sum in one order whatever the
// threads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"

namespace sinter::kernels::cpu {
namespace {

constexpr int64_t kLanes = 16;  // partial sums of a dot product, which a compiler keeps in vectors

float dot(const float* a, const float* b, int64_t count) {
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) sums[l] += a[i + l] * b[i + l];
  }
  float sum = 0;
  for (; i < count; ++i) sum += a[i] * b[i];
  for (float s : sums) sum += s;
  return sum;
}

void add_scaled(float* y, const float* x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

// (heads, rows, D) floats from columns of rows.
std::vector<float> heads_of(const Tensor& x, int64_t column, int64_t heads, int64_t D) {
  const int64_t rows = x.size(0), width = x.size(-1);
  std::vector<float> result(static_cast<size_t>(heads * rows * D));
  with_format(x.dtype(), "attention_partial", [&]<class T>(T) {
    for_each_row(rows, heads * D, [&](int64_t r) {
      const T* from = x.data<T>() + r * width + column;
      for (int64_t h = 0; h < heads; ++h) {
        float* to = result.data() + (h * rows + r) * D;
        for (int64_t d = 0; d < D; ++d) to[d] = static_cast<float>(from[h * D + d]);
      }
    });
  });
  return result;
}

struct Parts {
  const AttentionParts& args;
  int64_t H, K, D, Tq, Tk;
  std::vector<float> q, k, v;
  explicit Parts(const AttentionParts& a)
      : args(a),
        H(a.shape.num_heads),
        K(a.shape.num_kv_heads),
        D(a.shape.head_dim),
        Tq(a.q.size(0)),
        Tk(a.k.size(0)),
        q(heads_of(a.q, a.q_column, H, D)),
        k(heads_of(a.k, a.k_column, K, D)),
        v(heads_of(a.v, a.v_column, K, D)) {}
  int64_t begin(int64_t t) const { return std::max(0, args.key_begin.data<int32_t>()[t]); }
  int64_t end(int64_t t) const { return std::min<int64_t>(Tk, args.key_end.data<int32_t>()[t]); }
  const float* query(int64_t h, int64_t t) const { return q.data() + (h * Tq + t) * D; }
  const float* key(int64_t h, int64_t j) const { return k.data() + (h / (H / K) * Tk + j) * D; }
  const float* value(int64_t h, int64_t j) const { return v.data() + (h / (H / K) * Tk + j) * D; }
  float factor(int64_t t, int64_t j, int64_t h) const {
    const AttentionShape& shape = args.shape;
    if (shape.dropout == 0) return 1.0f;
    const int64_t row = args.query_rows ? args.query_rows.data<int32_t>()[t] - shape.first_token : t;
    const uint64_t index = shape.first_dropped(h, row) + static_cast<uint64_t>(args.key_positions.data<int32_t>()[j]);
    const base::CounterRng rng{shape.key.seed, shape.key.stream};
    return rng.uniform(index) >= shape.dropout ? 1.0f / (1.0f - shape.dropout) : 0.0f;
  }
};

}  // namespace

void attention_partial_forward(Stream&, const AttentionPartialForwardArgs& args) {
  const Parts p(args.parts);
  base::parallel_for(p.Tq * p.H, 8, [&](int64_t first, int64_t last) {
    std::vector<float> scores(static_cast<size_t>(p.Tk));
    for (int64_t task = first; task < last; ++task) {
      const int64_t h = task / p.Tq, t = task % p.Tq, begin = p.begin(t), end = p.end(t);
      float* out = args.out.data<float>() + (t * p.H + h) * p.D;
      std::fill_n(out, p.D, 0.0f);
      float largest = -std::numeric_limits<float>::infinity(), total = 0;
      for (int64_t j = begin; j < end; ++j) {
        float& score = scores[static_cast<size_t>(j)];
        score = dot(p.query(h, t), p.key(h, j), p.D) * p.args.shape.scale;
        largest = std::max(largest, score);
      }
      for (int64_t j = begin; j < end; ++j) {
        const float e = std::exp(scores[static_cast<size_t>(j)] - largest);
        total += e;
        add_scaled(out, p.value(h, j), e * p.factor(t, j, h), p.D);
      }
      for (int64_t d = 0; total > 0 && d < p.D; ++d) out[d] /= total;
      args.lse.data<float>()[h * p.Tq + t] = total > 0 ? largest + std::log(total) : largest;
    }
  });
}

void attention_partial_backward(Stream&, const AttentionPartialBackwardArgs& args) {
  const Parts p(args.parts);
  const std::vector<float> out = heads_of(args.out, 0, p.H, p.D), dout = heads_of(args.dout, 0, p.H, p.D);
  std::vector<float> delta(static_cast<size_t>(p.H * p.Tq));
  const float* lse = args.lse.data<float>();
  // The gradient of the score of query t and key j, and the probability times what dropout makes of it.
  auto gradient = [&](int64_t h, int64_t t, int64_t j, float& kept) {
    const int64_t row = h * p.Tq + t;
    const float probability = std::exp(dot(p.query(h, t), p.key(h, j), p.D) * p.args.shape.scale - lse[row]);
    const float factor = p.factor(t, j, h), dp = dot(dout.data() + row * p.D, p.value(h, j), p.D);
    kept = probability * factor;
    return probability * (dp * factor - delta[static_cast<size_t>(row)]) * p.args.shape.scale;
  };
  base::parallel_for(p.H * p.Tq, 8, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t h = row / p.Tq, t = row % p.Tq;
      delta[static_cast<size_t>(row)] = dot(dout.data() + row * p.D, out.data() + row * p.D, p.D);
      float* dq = args.dq.data<float>() + (t * p.H + h) * p.D;
      float kept;
      for (int64_t j = p.begin(t); j < p.end(t); ++j) {
        const float ds = gradient(h, t, j, kept);
        add_scaled(dq, p.key(h, j), ds, p.D);
      }
    }
  });
  base::parallel_for(p.K * p.Tk, 8, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const int64_t kv_head = row / p.Tk, j = row % p.Tk, group = p.H / p.K;
      float *dk = args.dk.data<float>() + (j * p.K + kv_head) * p.D,
            *dv = args.dv.data<float>() + (j * p.K + kv_head) * p.D;
      float kept;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        for (int64_t t = 0; t < p.Tq; ++t) {
          if (j < p.begin(t) || j >= p.end(t)) continue;
          const float ds = gradient(h, t, j, kept);
          add_scaled(dk, p.query(h, t), ds, p.D);
          add_scaled(dv, dout.data() + (h * p.Tq + t) * p.D, kept, p.D);
        }
      }
    }
  });
}

}  // namespace sinter::kernels::cpu
