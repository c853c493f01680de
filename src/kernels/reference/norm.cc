#include <cmath>
#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void norm_forward(Stream&, const NormForwardArgs& args) {
  FloatView x(args.x), residual(args.residual), weight(args.weight), bias(args.bias), sum(args.sum), y(args.y),
      mean_out(args.mean), rstd_out(args.rstd);
  bool is_layer = args.kind == spec::NormKind::layer;
  int64_t channels = args.x.size(-1);
  for_each_index(args.x.rows(), [&](int64_t r) {
    std::vector<double> s(static_cast<size_t>(channels));
    for (int64_t c = 0; c < channels; ++c) {
      int64_t i = r * channels + c;
      s[c] = x[i];
      if (residual) {
        sum.set(i, x[i] + residual[i]);
        s[c] = sum[i];  // as stored: backward reads that too
      }
    }
    double mean = 0, variance = 0;
    if (is_layer) {
      for (double v : s) mean += v;
      mean /= static_cast<double>(channels);
    }
    for (double v : s) variance += (v - mean) * (v - mean);
    double rstd = 1.0 / std::sqrt(variance / static_cast<double>(channels) + args.eps);
    for (int64_t c = 0; c < channels; ++c) {
      y.set(r * channels + c, (s[c] - mean) * rstd * weight[c] + (bias ? bias[c] : 0.0));
    }
    if (mean_out) mean_out.set(r, mean);
    if (rstd_out) rstd_out.set(r, rstd);
  });
}

void norm_backward(Stream& stream, const NormBackwardArgs& args) {
  FloatView dy(args.dy), dsum(args.dsum), s(args.s), weight(args.weight), mean_in(args.mean), rstd_in(args.rstd),
      ds(args.ds), dweight(args.dweight), dbias(args.dbias);
  bool is_layer = args.kind == spec::NormKind::layer;
  int64_t channels = args.s.size(-1);
  std::vector<double> dweight_sum(static_cast<size_t>(channels)), dbias_sum(static_cast<size_t>(channels));
  for (int64_t r = 0; r < args.s.rows(); ++r) {
    double mean = is_layer ? mean_in[r] : 0.0, rstd = rstd_in[r];
    // With n = (s - mean) * rstd and g = dy * weight: ds = rstd * (g - mean(g) - n * mean(g * n)); rms has no mean(g).
    double g_mean = 0, gn_mean = 0;
    for (int64_t c = 0; c < channels; ++c) {
      int64_t i = r * channels + c;
      double n = (s[i] - mean) * rstd, g = dy[i] * weight[c];
      g_mean += g;
      gn_mean += g * n;
      dweight_sum[c] += dy[i] * n;
      dbias_sum[c] += dy[i];
    }
    g_mean = is_layer ? g_mean / static_cast<double>(channels) : 0.0;
    gn_mean /= static_cast<double>(channels);
    for (int64_t c = 0; c < channels; ++c) {
      int64_t i = r * channels + c;
      double n = (s[i] - mean) * rstd, g = dy[i] * weight[c];
      ds.set(i, rstd * (g - g_mean - n * gn_mean) + (dsum ? dsum[i] : 0.0));
    }
  }
  for (int64_t c = 0; c < channels; ++c) {
    if (dweight) dweight.add(c, dweight_sum[c]);
    if (dbias) dbias.add(c, dbias_sum[c]);
  }
  if (args.ds_sums) column_sum(stream, {.x = args.ds, .y = args.ds_sums, .accumulate = true});
}

void head_norm_forward(Stream&, const HeadNormForwardArgs& args) {
  FloatView qkv(args.qkv), q_weight(args.q_weight), k_weight(args.k_weight), out(args.out), rstd_out(args.rstd);
  int64_t normed = args.num_heads + args.num_kv_heads, heads = normed + args.num_kv_heads, dim = args.head_dim;
  for_each_index(args.qkv.rows(), [&](int64_t t) {
    for (int64_t h = 0; h < heads; ++h) {
      int64_t first = (t * heads + h) * dim;
      if (h >= normed) {
        for (int64_t d = 0; d < dim; ++d) out.set(first + d, qkv[first + d]);
        continue;
      }
      const FloatView& weight = h < args.num_heads ? q_weight : k_weight;
      double squares = 0;
      for (int64_t d = 0; d < dim; ++d) squares += qkv[first + d] * qkv[first + d];
      double rstd = 1.0 / std::sqrt(squares / static_cast<double>(dim) + args.eps);
      for (int64_t d = 0; d < dim; ++d) out.set(first + d, qkv[first + d] * rstd * weight[d]);
      if (rstd_out) rstd_out.set(t * normed + h, rstd);
    }
  });
}

void head_norm_backward(Stream&, const HeadNormBackwardArgs& args) {
  FloatView dout(args.dout), qkv(args.qkv), q_weight(args.q_weight), k_weight(args.k_weight), rstd_in(args.rstd),
      dqkv(args.dqkv), dq_weight(args.dq_weight), dk_weight(args.dk_weight);
  int64_t normed = args.num_heads + args.num_kv_heads, heads = normed + args.num_kv_heads, dim = args.head_dim;
  std::vector<double> dq_sum(static_cast<size_t>(dim)), dk_sum(static_cast<size_t>(dim));
  for (int64_t t = 0; t < args.qkv.rows(); ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      int64_t first = (t * heads + h) * dim;
      if (h >= normed) {
        for (int64_t d = 0; d < dim; ++d) dqkv.set(first + d, dout[first + d]);
        continue;
      }
      const FloatView& weight = h < args.num_heads ? q_weight : k_weight;
      std::vector<double>& dweight = h < args.num_heads ? dq_sum : dk_sum;
      double rstd = rstd_in[t * normed + h], gn_mean = 0;
      for (int64_t d = 0; d < dim; ++d) {
        double n = qkv[first + d] * rstd;
        gn_mean += dout[first + d] * weight[d] * n;
        dweight[d] += dout[first + d] * n;
      }
      gn_mean /= static_cast<double>(dim);
      for (int64_t d = 0; d < dim; ++d) {
        double n = qkv[first + d] * rstd;
        dqkv.set(first + d, rstd * (dout[first + d] * weight[d] - n * gn_mean));
      }
    }
  }
  for (int64_t d = 0; d < dim; ++d) {
    if (dq_weight) dq_weight.add(d, dq_sum[d]);
    if (dk_weight) dk_weight.add(d, dk_sum[d]);
  }
}

}  // namespace sinter::kernels::reference
