// Operands of attention in parts, as rows of floats.
#pragma once
#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/table.h"

namespace sinter::kernels::cpu {

// (heads, rows, D) floats from columns of rows.
std::vector<float> heads_of(const Tensor& x, int64_t column, int64_t heads, int64_t D);

struct Parts {
  const AttentionParts& args;
  int64_t H, K, D, Tq, Tk;
  const int32_t *key_begin, *key_end;
  std::vector<float> q, k, v;
  explicit Parts(const AttentionParts& a)
      : args(a),
        H(a.shape.num_heads),
        K(a.shape.num_kv_heads),
        D(a.shape.head_dim),
        Tq(a.q.size(0)),
        Tk(a.k.size(0)),
        key_begin(a.key_begin.data<int32_t>()),
        key_end(a.key_end.data<int32_t>()),
        q(heads_of(a.q, a.q_column, H, D)),
        k(heads_of(a.k, a.k_column, K, D)),
        v(heads_of(a.v, a.v_column, K, D)) {}
  int64_t begin(int64_t t) const { return std::max(0, key_begin[t]); }
  int64_t end(int64_t t) const { return std::min<int64_t>(Tk, key_end[t]); }
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

struct PartsBackward {
  explicit PartsBackward(const AttentionPartialBackwardArgs& a)
      : args(a),
        p(a.parts),
        lse(a.lse.data<float>()),
        out(heads_of(a.out, 0, p.H, p.D)),
        dout(heads_of(a.dout, 0, p.H, p.D)),
        delta(static_cast<size_t>(p.H * p.Tq)) {}
  const AttentionPartialBackwardArgs& args;
  const Parts p;
  const float* lse;
  const std::vector<float> out, dout;
  std::vector<float> delta;  // (H, Tq): sums of out dout
};

}  // namespace sinter::kernels::cpu
