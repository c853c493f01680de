// Attention to keys and values that lie elsewhere, in parts (ring attention). Rows become floats once; then a query row
// walks the keys it sees, and in backward a key row the queries that see it, each sum in one order whatever the
// threads.
#include "kernels/cpu/attention/attention_parts.h"

#include <cmath>
#include <limits>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention/attention_parts.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

HWY_INLINE float dot(const float* a, const float* b, int64_t count) {
  Floats sum = zero();
  for_vectors(static_cast<size_t>(count),
              [&](size_t i, size_t n) HWY_ATTR { sum = hn::MulAdd(load_n(a + i, n), load_n(b + i, n), sum); });
  return sum_lanes(sum);
}

HWY_INLINE void add_scaled(float* y, const float* x, float factor, int64_t count) {
  const Floats by = set(factor);
  for_vectors(static_cast<size_t>(count), [&](size_t i, size_t n) HWY_ATTR {
    store_n(hn::MulAdd(load_n(x + i, n), by, load_n(y + i, n)), y + i, n);
  });
}

// scores: room for a value of every key.
void forward_row(const AttentionPartialForwardArgs& args, const Parts& p, int64_t h, int64_t t, float* scores) {
  const int64_t begin = p.begin(t), end = p.end(t);
  float* out = args.out.data<float>() + (t * p.H + h) * p.D;
  std::fill_n(out, p.D, 0.0f);
  float largest = -std::numeric_limits<float>::infinity(), total = 0;
  for (int64_t j = begin; j < end; ++j) {
    scores[j] = dot(p.query(h, t), p.key(h, j), p.D) * p.args.shape.scale;
    largest = std::max(largest, scores[j]);
  }
  for (int64_t j = begin; j < end; ++j) {
    const float e = std::exp(scores[j] - largest);
    total += e;
    add_scaled(out, p.value(h, j), e * p.factor(t, j, h), p.D);
  }
  for (int64_t d = 0; total > 0 && d < p.D; ++d) out[d] /= total;
  args.lse.data<float>()[h * p.Tq + t] = total > 0 ? largest + std::log(total) : largest;
}

// The gradient of the score of query t and key j, and the probability times what dropout makes of it.
HWY_INLINE float score_gradient(const PartsBackward& b, int64_t h, int64_t t, int64_t j, float& kept) {
  const Parts& p = b.p;
  const int64_t row = h * p.Tq + t;
  const float score = dot(p.query(h, t), p.key(h, j), p.D) * p.args.shape.scale;
  const float probability = std::exp(score - b.lse[row]);
  const float factor = p.factor(t, j, h), dp = dot(b.dout.data() + row * p.D, p.value(h, j), p.D);
  kept = probability * factor;
  return probability * (dp * factor - b.delta[static_cast<size_t>(row)]) * p.args.shape.scale;
}

void query_row(PartsBackward& b, int64_t h, int64_t t) {
  const Parts& p = b.p;
  const int64_t row = h * p.Tq + t;
  b.delta[static_cast<size_t>(row)] = dot(b.dout.data() + row * p.D, b.out.data() + row * p.D, p.D);
  float* dq = b.args.dq.data<float>() + (t * p.H + h) * p.D;
  float kept;
  for (int64_t j = p.begin(t); j < p.end(t); ++j) add_scaled(dq, p.key(h, j), score_gradient(b, h, t, j, kept), p.D);
}

void key_row(const PartsBackward& b, int64_t kv_head, int64_t j) {
  const Parts& p = b.p;
  const int64_t group = p.H / p.K;
  float *dk = b.args.dk.data<float>() + (j * p.K + kv_head) * p.D,
        *dv = b.args.dv.data<float>() + (j * p.K + kv_head) * p.D;
  float kept;
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (int64_t t = 0; t < p.Tq; ++t) {
      if (j < p.begin(t) || j >= p.end(t)) continue;
      const float ds = score_gradient(b, h, t, j, kept);
      add_scaled(dk, p.query(h, t), ds, p.D);
      add_scaled(dv, b.dout.data() + (h * p.Tq + t) * p.D, kept, p.D);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

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

HWY_EXPORT(forward_row);
HWY_EXPORT(query_row);
HWY_EXPORT(key_row);

void attention_partial_forward(Stream&, const AttentionPartialForwardArgs& args) {
  const Parts p(args.parts);
  base::parallel_for(p.Tq * p.H, 8, [&](int64_t first, int64_t last) {
    std::vector<float> scores(static_cast<size_t>(p.Tk));
    for (int64_t task = first; task < last; ++task)
      HWY_DYNAMIC_DISPATCH(forward_row)(args, p, task / p.Tq, task % p.Tq, scores.data());
  });
}

void attention_partial_backward(Stream&, const AttentionPartialBackwardArgs& args) {
  PartsBackward b(args);
  const int64_t Tq = b.p.Tq, Tk = b.p.Tk;
  base::parallel_for(b.p.H * Tq, 8, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) HWY_DYNAMIC_DISPATCH(query_row)(b, row / Tq, row % Tq);
  });
  base::parallel_for(b.p.K * Tk, 8, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) HWY_DYNAMIC_DISPATCH(key_row)(b, row / Tk, row % Tk);
  });
}

}  // namespace sinter::kernels::cpu
#endif
