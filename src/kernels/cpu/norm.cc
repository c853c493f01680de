// RMSNorm and LayerNorm with the residual sum fused, and the per-head RMSNorm of Q and K.
#include <cmath>

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"
#include "kernels/cpu/highway_targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sinter::kernels::cpu {
namespace HWY_NAMESPACE {

// ---- one row ------------------------------------------------------------------------------------------------------
template <class T>
float sum_row(const T* s, size_t channels) {
  Floats sum = zero();
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR { sum = hn::Add(sum, load_n(s + i, n)); });
  return sum_lanes(sum);
}

// Sum of (s - mean)^2.
template <class T>
float sum_row_squares(const T* s, float mean, size_t channels) {
  Floats sum = zero(), m = set(mean);
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
    Floats d = hn::Sub(load_n(s + i, n), m);
    if (n < kLanes) d = hn::IfThenElseZero(hn::FirstN(kFloats, n), d);
    sum = hn::MulAdd(d, d, sum);
  });
  return sum_lanes(sum);
}

template <class T>
void norm_row(const T* s, float mean, float rstd, const float* weight, const float* bias, T* y, size_t channels) {
  Floats m = set(mean), r = set(rstd);
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
    Floats v = hn::Mul(hn::Sub(load_n(s + i, n), m), r);
    Floats w = load_n(weight + i, n);
    v = bias ? hn::MulAdd(v, w, load_n(bias + i, n)) : hn::Mul(v, w);
    store_n(v, y + i, n);
  });
}

template <class T>
void norm_forward_rows(const NormForwardArgs& args) {
  size_t channels = static_cast<size_t>(args.x.size(-1));
  bool is_layer = args.kind == spec::NormKind::layer;
  const float* bias = args.bias ? args.bias.data<float>() : nullptr;
  for_each_row(args.x.rows(), args.x.size(-1), [&](int64_t r) {
    size_t first = static_cast<size_t>(r) * channels;
    const T* s = args.x.data<T>() + first;
    if (args.residual) {
      const T* residual = args.residual.data<T>() + first;
      T* sum = args.sum.data<T>() + first;
      for_vectors(channels, [&](size_t i, size_t n)
                                HWY_ATTR { store_n(hn::Add(load_n(s + i, n), load_n(residual + i, n)), sum + i, n); });
      s = sum;
    }
    float mean = is_layer ? sum_row(s, channels) / static_cast<float>(channels) : 0.0f;
    float variance = sum_row_squares(s, mean, channels) / static_cast<float>(channels);
    float rstd = 1.0f / std::sqrt(variance + args.eps);
    norm_row(s, mean, rstd, args.weight.data<float>(), bias, args.y.data<T>() + first, channels);
    if (args.mean) args.mean.data<float>()[r] = mean;
    if (args.rstd) args.rstd.data<float>()[r] = rstd;
  });
}

// Adds this row's dy * n to dweight, dy to dbias and ds to ds_sums (when given), and writes ds = rstd * (g - mean(g) -
// n mean(g n)) (+ dsum), where n is the normalised row and g = dy * weight; rms has no mean(g).
template <class T>
void norm_backward_row(const T* dy, const T* dsum, const T* s, const float* weight, float mean, float rstd,
                       bool is_layer, T* ds, float* dweight, float* dbias, float* ds_sums, size_t channels) {
  Floats m = set(mean), r = set(rstd), g_sum = zero(), gn_sum = zero();
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
    Floats d = load_n(dy + i, n);  // 0 beyond n, so the sums need no mask
    Floats normed = hn::Mul(hn::Sub(load_n(s + i, n), m), r);
    Floats g = hn::Mul(d, load_n(weight + i, n));
    g_sum = hn::Add(g_sum, g);
    gn_sum = hn::MulAdd(g, normed, gn_sum);
    store_n(hn::MulAdd(d, normed, load_n(dweight + i, n)), dweight + i, n);
    if (dbias) store_n(hn::Add(d, load_n(dbias + i, n)), dbias + i, n);
  });
  float count = static_cast<float>(channels);
  Floats g_mean = set(is_layer ? sum_lanes(g_sum) / count : 0.0f), gn_mean = set(sum_lanes(gn_sum) / count);
  for_vectors(channels, [&](size_t i, size_t n) HWY_ATTR {
    Floats normed = hn::Mul(hn::Sub(load_n(s + i, n), m), r);
    Floats g = hn::Mul(load_n(dy + i, n), load_n(weight + i, n));
    Floats v = hn::Mul(hn::NegMulAdd(normed, gn_mean, hn::Sub(g, g_mean)), r);
    if (dsum) v = hn::Add(v, load_n(dsum + i, n));
    store_n(v, ds + i, n);
    if (ds_sums) store_n(hn::Add(load_n(ds_sums + i, n), load_n(ds + i, n)), ds_sums + i, n);  // as rounded
  });
}

// Adds the parts (count, width), in order, to `out`.
void add_parts(const float* parts, int64_t count, size_t stride, float* out, size_t width) {
  for_vectors(width, [&](size_t i, size_t n) HWY_ATTR {
    Floats sum = zero();
    for (int64_t p = 0; p < count; ++p) sum = hn::Add(sum, load_n(parts + static_cast<size_t>(p) * stride + i, n));
    store_n(hn::Add(load_n(out + i, n), sum), out + i, n);
  });
}

template <class T>
void norm_backward_rows(const NormBackwardArgs& args, float* parts) {
  size_t channels = static_cast<size_t>(args.s.size(-1)), stride = 3 * channels;
  bool is_layer = args.kind == spec::NormKind::layer;
  RowParts cut(args.s.rows());
  base::parallel_for(cut.count, 1, [&](int64_t part, int64_t) {
    float* dweight = parts + static_cast<size_t>(part) * stride;
    float* dbias = args.dbias ? dweight + channels : nullptr;
    float* ds_sums = args.ds_sums ? dweight + 2 * channels : nullptr;
    std::fill(dweight, dweight + stride, 0.0f);
    for (int64_t r = cut.begin(part); r < cut.end(part); ++r) {
      size_t first = static_cast<size_t>(r) * channels;
      norm_backward_row(args.dy.data<T>() + first, args.dsum ? args.dsum.data<T>() + first : nullptr,
                        args.s.data<T>() + first, args.weight.data<float>(),
                        is_layer ? args.mean.data<float>()[r] : 0.0f, args.rstd.data<float>()[r], is_layer,
                        args.ds.data<T>() + first, dweight, dbias, ds_sums, channels);
    }
  });
  if (args.dweight) add_parts(parts, cut.count, stride, args.dweight.data<float>(), channels);
  if (args.dbias) add_parts(parts + channels, cut.count, stride, args.dbias.data<float>(), channels);
  if (args.ds_sums) add_parts(parts + 2 * channels, cut.count, stride, args.ds_sums.data<float>(), channels);
}

// ---- heads --------------------------------------------------------------------------------------------------------
template <class T>
void head_norm_forward_rows(const HeadNormForwardArgs& args) {
  int64_t normed = args.num_heads + args.num_kv_heads, heads = normed + args.num_kv_heads;
  size_t dim = static_cast<size_t>(args.head_dim);
  for_each_row(args.qkv.rows(), args.qkv.size(-1), [&](int64_t t) {
    for (int64_t h = 0; h < normed; ++h) {
      size_t first = static_cast<size_t>(t * heads + h) * dim;
      const T* x = args.qkv.data<T>() + first;
      float rstd = 1.0f / std::sqrt(sum_row_squares(x, 0.0f, dim) / static_cast<float>(dim) + args.eps);
      const Tensor& weight = h < args.num_heads ? args.q_weight : args.k_weight;
      norm_row(x, 0.0f, rstd, weight.data<float>(), nullptr, args.out.data<T>() + first, dim);
      if (args.rstd) args.rstd.data<float>()[t * normed + h] = rstd;
    }
    size_t values = static_cast<size_t>(t * heads + normed) * dim;
    std::memmove(args.out.data<T>() + values, args.qkv.data<T>() + values,
                 static_cast<size_t>(args.num_kv_heads) * dim * sizeof(T));
  });
}

template <class T>
void head_norm_backward_rows(const HeadNormBackwardArgs& args, float* parts) {
  int64_t normed = args.num_heads + args.num_kv_heads, heads = normed + args.num_kv_heads;
  size_t dim = static_cast<size_t>(args.head_dim), stride = 2 * dim;
  RowParts cut(args.qkv.rows());
  base::parallel_for(cut.count, 1, [&](int64_t part, int64_t) {
    float* dweights = parts + static_cast<size_t>(part) * stride;  // of q, then of k
    std::fill(dweights, dweights + stride, 0.0f);
    for (int64_t t = cut.begin(part); t < cut.end(part); ++t) {
      for (int64_t h = 0; h < normed; ++h) {
        size_t first = static_cast<size_t>(t * heads + h) * dim;
        bool is_query = h < args.num_heads;
        norm_backward_row(args.dout.data<T>() + first, static_cast<const T*>(nullptr), args.qkv.data<T>() + first,
                          (is_query ? args.q_weight : args.k_weight).data<float>(), 0.0f,
                          args.rstd.data<float>()[t * normed + h], false, args.dqkv.data<T>() + first,
                          is_query ? dweights : dweights + dim, nullptr, nullptr, dim);
      }
      size_t values = static_cast<size_t>(t * heads + normed) * dim;
      std::memmove(args.dqkv.data<T>() + values, args.dout.data<T>() + values,
                   static_cast<size_t>(args.num_kv_heads) * dim * sizeof(T));
    }
  });
  if (args.dq_weight) add_parts(parts, cut.count, stride, args.dq_weight.data<float>(), dim);
  if (args.dk_weight) add_parts(parts + dim, cut.count, stride, args.dk_weight.data<float>(), dim);
}

void norm_forward_any(const NormForwardArgs& args) {
  with_format(args.x.dtype(), "norm_forward", [&]<class T>(T) { norm_forward_rows<T>(args); });
}
void norm_backward_any(const NormBackwardArgs& args, float* parts) {
  with_format(args.s.dtype(), "norm_backward", [&]<class T>(T) { norm_backward_rows<T>(args, parts); });
}
void head_norm_forward_any(const HeadNormForwardArgs& args) {
  with_format(args.qkv.dtype(), "head_norm_forward", [&]<class T>(T) { head_norm_forward_rows<T>(args); });
}
void head_norm_backward_any(const HeadNormBackwardArgs& args, float* parts) {
  with_format(args.qkv.dtype(), "head_norm_backward", [&]<class T>(T) { head_norm_backward_rows<T>(args, parts); });
}

}  // namespace HWY_NAMESPACE
}  // namespace sinter::kernels::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sinter::kernels::cpu {

HWY_EXPORT(norm_forward_any);
HWY_EXPORT(norm_backward_any);
HWY_EXPORT(head_norm_forward_any);
HWY_EXPORT(head_norm_backward_any);

namespace {
thread_local AlignedBuffer t_parts;
}

void norm_forward(Stream&, const NormForwardArgs& args) { HWY_DYNAMIC_DISPATCH(norm_forward_any)(args); }

void norm_backward(Stream&, const NormBackwardArgs& args) {
  RowParts cut(args.s.rows());
  float* parts = t_parts.reserve_array<float>(cut.count * 3 * args.s.size(-1));
  HWY_DYNAMIC_DISPATCH(norm_backward_any)(args, parts);
}

void head_norm_forward(Stream&, const HeadNormForwardArgs& args) { HWY_DYNAMIC_DISPATCH(head_norm_forward_any)(args); }

void head_norm_backward(Stream&, const HeadNormBackwardArgs& args) {
  RowParts cut(args.qkv.rows());
  float* parts = t_parts.reserve_array<float>(cut.count * 2 * args.head_dim);
  HWY_DYNAMIC_DISPATCH(head_norm_backward_any)(args, parts);
}

}  // namespace sinter::kernels::cpu
#endif
