// Attention to keys and values that lie elsewhere, in parts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// Reads the operands of one call.
struct Parts {
  const AttentionParts& args;
  FloatView q, k, v;
  int64_t H, K, D, Tq, Tk;
  explicit Parts(const AttentionParts& a)
      : args(a),
        q(a.q),
        k(a.k),
        v(a.v),
        H(a.shape.num_heads),
        K(a.shape.num_kv_heads),
        D(a.shape.head_dim),
        Tq(a.q.size(0)),
        Tk(a.k.size(0)) {}
  int64_t kv_head(int64_t h) const { return h / (H / K); }
  int64_t begin(int64_t t) const { return std::max(0, args.key_begin.data<int32_t>()[t]); }
  int64_t end(int64_t t) const { return std::min<int64_t>(Tk, args.key_end.data<int32_t>()[t]); }
  double query(int64_t t, int64_t h, int64_t d) const { return q[t * args.q.size(-1) + args.q_column + h * D + d]; }
  double key(int64_t j, int64_t h, int64_t d) const {
    return k[j * args.k.size(-1) + args.k_column + kv_head(h) * D + d];
  }
  double value(int64_t j, int64_t h, int64_t d) const {
    return v[j * args.v.size(-1) + args.v_column + kv_head(h) * D + d];
  }
  double score(int64_t t, int64_t j, int64_t h) const {
    double dot = 0;
    for (int64_t d = 0; d < D; ++d) dot += query(t, h, d) * key(j, h, d);
    return dot * args.shape.scale;
  }
  // 1 / (1 - p) where the probability is kept, else 0.
  double factor(int64_t t, int64_t j, int64_t h) const {
    const AttentionShape& shape = args.shape;
    if (shape.dropout == 0) return 1.0;
    const int64_t row = args.query_rows ? args.query_rows.data<int32_t>()[t] - shape.first_token : t;
    const uint64_t index = shape.first_dropped(h, row) + static_cast<uint64_t>(args.key_positions.data<int32_t>()[j]);
    return rng_of(shape.key).uniform(index) >= shape.dropout ? 1.0 / (1.0 - shape.dropout) : 0.0;
  }
};

}  // namespace

void attention_partial_forward(Stream&, const AttentionPartialForwardArgs& args) {
  const Parts p(args.parts);
  FloatView out(args.out), lse(args.lse);
  for_each_index(p.Tq * p.H, [&](int64_t task) {
    const int64_t t = task / p.H, h = task % p.H;
    double largest = -std::numeric_limits<double>::infinity(), total = 0;
    std::vector<double> sum(static_cast<size_t>(p.D));
    for (int64_t j = p.begin(t); j < p.end(t); ++j) largest = std::max(largest, p.score(t, j, h));
    for (int64_t j = p.begin(t); j < p.end(t); ++j) {
      const double e = std::exp(p.score(t, j, h) - largest);
      total += e;
      for (int64_t d = 0; d < p.D; ++d) sum[static_cast<size_t>(d)] += e * p.factor(t, j, h) * p.value(j, h, d);
    }
    for (int64_t d = 0; d < p.D; ++d)
      out.set((t * p.H + h) * p.D + d, total > 0 ? sum[static_cast<size_t>(d)] / total : 0.0);
    lse.set(h * p.Tq + t, total > 0 ? largest + std::log(total) : -std::numeric_limits<double>::infinity());
  });
}

void attention_combine(Stream&, const AttentionCombineArgs& args) {
  FloatView part(args.part), part_lse(args.part_lse), out(args.out), lse(args.lse);
  const int64_t H = args.lse.size(0), Tq = args.lse.size(1), D = args.out.size(-1) / H;
  for_each_index(Tq * H, [&](int64_t task) {
    const int64_t t = task / H, h = task % H;
    const double a = lse[h * Tq + t], b = part_lse[h * Tq + t], largest = std::max(a, b);
    if (largest == -std::numeric_limits<double>::infinity()) return;
    const double joined = largest + std::log(std::exp(a - largest) + std::exp(b - largest));
    const double wa = std::exp(a - joined), wb = std::exp(b - joined);
    for (int64_t d = 0; d < D; ++d) {
      const int64_t at = (t * H + h) * D + d;
      out.set(at, wa * out[at] + wb * part[at]);
    }
    lse.set(h * Tq + t, joined);
  });
}

void attention_partial_backward(Stream&, const AttentionPartialBackwardArgs& args) {
  const Parts p(args.parts);
  FloatView out(args.out), dout(args.dout), lse(args.lse), dq(args.dq), dk(args.dk), dv(args.dv);
  for_each_index(p.K, [&](int64_t kv_head) {  // no two of them add into one place
    const int64_t group = p.H / p.K;
    for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
      for (int64_t t = 0; t < p.Tq; ++t) {
        const int64_t o = (t * p.H + h) * p.D;
        double delta = 0;
        for (int64_t d = 0; d < p.D; ++d) delta += dout[o + d] * out[o + d];
        for (int64_t j = p.begin(t); j < p.end(t); ++j) {
          const double probability = std::exp(p.score(t, j, h) - lse[h * p.Tq + t]), factor = p.factor(t, j, h);
          double dp = 0;
          for (int64_t d = 0; d < p.D; ++d) dp += dout[o + d] * p.value(j, h, d);
          const double ds = probability * (dp * factor - delta) * p.args.shape.scale;
          const int64_t key = (j * p.K + kv_head) * p.D;
          for (int64_t d = 0; d < p.D; ++d) {
            dq.add(o + d, ds * p.key(j, h, d));
            dk.add(key + d, ds * p.query(t, h, d));
            dv.add(key + d, probability * factor * dout[o + d]);
          }
        }
      }
    }
  });
}

}  // namespace sinter::kernels::reference
