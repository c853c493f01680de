// Cases: norm and head norm, forward and backward.
#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

void test_norm(DType t, spec::NormKind kind, int64_t rows, int64_t channels, bool residual) {
  bool is_layer = kind == spec::NormKind::layer;
  std::string shape =
      fmt::format("({}, {}) {}{}", rows, channels, is_layer ? "layer" : "rms", residual ? " residual" : "");
  if (wants("norm_forward")) {
    Case c("norm_forward", t, shape);
    int x = c.random({rows, channels}, t, 1.0f, 0.3f), r = residual ? c.random({rows, channels}, t) : -1;
    int weight = c.random({channels}, DType::f32, 0.2f, 1.0f), bias = is_layer ? c.random({channels}, DType::f32) : -1;
    int sum = residual ? (channels % 2 ? x : c.output({rows, channels}, t)) : -1, y = c.output({rows, channels}, t);
    int mean = is_layer ? c.output({rows}, DType::f32) : -1, rstd = c.output({rows}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.norm_forward(s, {kind, 1e-5f, at(x), at(r), at(weight), at(bias), at(sum), at(y), at(mean), at(rstd)});
    });
    c.expect_close(y, "y", rounding_limit(t));
    if (residual) c.expect_close(sum, "sum", rounding_limit(t));
    if (is_layer) c.expect_close(mean, "mean", 1e-5);
    c.expect_close(rstd, "rstd", 1e-5);
  }
  if (!wants("norm_backward")) return;
  Case c("norm_backward", t, shape);
  int dy = c.random({rows, channels}, t), dsum = residual ? c.random({rows, channels}, t) : -1,
      x = c.random({rows, channels}, t);
  int weight = c.random({channels}, DType::f32, 0.2f, 1.0f);
  int mean = is_layer ? c.random({rows}, DType::f32, 0.1f) : -1, rstd = c.uniform({rows}, DType::f32, 0.8f, 1.2f);
  int ds = channels % 3 == 0 ? dy : c.output({rows, channels}, t), dweight = c.random({channels}, DType::f32);
  int dbias = is_layer ? c.random({channels}, DType::f32) : -1;
  int ds_sums = rows % 2 ? c.random({channels}, DType::f32) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    table.norm_backward(s, {kind, at(dy), at(dsum), at(x), at(weight), at(mean), at(rstd), at(ds), at(dweight),
                            at(dbias), at(ds_sums)});
  });
  c.expect_close(ds, "ds", rounding_limit(t));
  c.expect_close(dweight, "dweight", 2e-5);
  if (is_layer) c.expect_close(dbias, "dbias", 2e-5);
  // Of values that one side may round to the format before.
  if (rows % 2) c.expect_close(ds_sums, "ds_sums", std::max(2e-5, rounding_limit(t)));
}

void test_head_norm(DType t, int64_t tokens, int64_t heads, int64_t kv_heads, int64_t dim) {
  int64_t width = (heads + 2 * kv_heads) * dim;
  std::string shape = fmt::format("T {} H {} K {} D {}", tokens, heads, kv_heads, dim);
  if (wants("head_norm_forward")) {
    Case c("head_norm_forward", t, shape);
    int qkv = c.random({tokens, width}, t), q = c.random({dim}, DType::f32, 0.2f, 1.0f),
        k = c.random({dim}, DType::f32, 0.2f, 1.0f);
    int out = c.output({tokens, width}, t), rstd = c.output({tokens, heads + kv_heads}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.head_norm_forward(s, {1e-6f, heads, kv_heads, dim, at(qkv), at(q), at(k), at(out), at(rstd)});
    });
    c.expect_close(out, "out", rounding_limit(t));
    c.expect_close(rstd, "rstd", 1e-5);
  }
  if (!wants("head_norm_backward")) return;
  Case c("head_norm_backward", t, shape);
  int dout = c.random({tokens, width}, t), qkv = c.random({tokens, width}, t);
  int q = c.random({dim}, DType::f32, 0.2f, 1.0f), k = c.random({dim}, DType::f32, 0.2f, 1.0f);
  int rstd = c.uniform({tokens, heads + kv_heads}, DType::f32, 0.8f, 1.2f);
  int dqkv = dim == 96 ? dout : c.output({tokens, width}, t), dq = c.random({dim}, DType::f32),
      dk = c.random({dim}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    table.head_norm_backward(
        s, {heads, kv_heads, dim, at(dout), at(qkv), at(q), at(k), at(rstd), at(dqkv), at(dq), at(dk)});
  });
  c.expect_close(dqkv, "dqkv", rounding_limit(t));
  c.expect_close(dq, "dq_weight", 2e-5);
  c.expect_close(dk, "dk_weight", 2e-5);
}

}  // namespace

void test_norms() {
  std::vector<int64_t> widths = {64, 33, 768, 1600, 2048, 4096, 5120, 16384, 8, 1023, 20000};
  std::vector<int64_t> dims = {64, 20, 128, 96, 256, 8, 33};
  if (test_options().small) widths = {64, 33, 768, 2048, 5120}, dims = {64, 20, 96};
  for (DType t : kFormats) {
    for (int64_t channels : widths) {
      for (int64_t rows : {int64_t{1}, int64_t{37}, int64_t{test_options().small ? 5 : 3001}}) {
        if (rows > 100 && channels > 2048) continue;
        for (auto kind : {spec::NormKind::rms, spec::NormKind::layer}) {
          for (bool residual : {true, false}) test_norm(t, kind, rows, channels, residual);
        }
      }
    }
    for (int64_t dim : dims) test_head_norm(t, test_options().small ? 5 : 301, 6, 2, dim);
  }
}

}  // namespace sinter::kernels::cuda_test
