// Cases: norms over rows and over heads, forward and backward.
#include <algorithm>

#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Norm {
  spec::NormKind kind;
  int64_t rows, channels;
  bool residual, bias;
  bool adds_sums;                                                 // of ds, over the rows
  enum Place { apart, over_input, over_residual } place = apart;  // of the sum, and of ds
};

std::string text_of(const Norm& n) {
  return fmt::format("{}x{}_{}{}{}", n.rows, n.channels, n.kind == spec::NormKind::layer ? "layer" : "rms",
                     n.bias ? "_bias" : "", n.residual ? "_residual" : "");
}

void norm_forward(Case& c, DType t, const Norm& n) {
  const bool is_layer = n.kind == spec::NormKind::layer;
  const Shape shape{n.rows, n.channels};
  const int x = c.random(shape, t, 1.0f, 0.3f), r = n.residual ? c.random(shape, t) : -1,
            weight = c.random({n.channels}, DType::f32, 0.2f, 1.0f),
            bias = n.bias ? c.random({n.channels}, DType::f32) : -1;
  const int sum = !n.residual                   ? -1
                  : n.place == Norm::over_input ? x
                                                : c.output(shape, t),
            y = c.output(shape, t), mean = is_layer ? c.output({n.rows}, DType::f32) : -1,
            rstd = c.output({n.rows}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.norm_forward(s, {n.kind, 1e-5f, at(x), at(r), at(weight), at(bias), at(sum), at(y), at(mean), at(rstd)});
  });
  c.expect_close(y, "y", Result::rounded);
  if (n.residual) c.expect_close(sum, "sum", Result::rounded);
  if (is_layer) c.expect_close(mean, "mean", Result::statistic);
  c.expect_close(rstd, "rstd", Result::statistic);
}

void norm_backward(Case& c, DType t, const Norm& n) {
  const bool is_layer = n.kind == spec::NormKind::layer;
  const Shape shape{n.rows, n.channels};
  const int dy = c.random(shape, t), dsum = n.residual ? c.random(shape, t) : -1, x = c.random(shape, t),
            weight = c.random({n.channels}, DType::f32, 0.2f, 1.0f),
            mean = is_layer ? c.random({n.rows}, DType::f32, 0.1f) : -1,
            rstd = c.uniform({n.rows}, DType::f32, 0.8f, 1.2f);
  const int ds = n.place == Norm::over_input                    ? dy
                 : n.residual && n.place == Norm::over_residual ? dsum
                                                                : c.output(shape, t),
            dweight = c.random({n.channels}, DType::f32), dbias = n.bias ? c.random({n.channels}, DType::f32) : -1,
            ds_sums = n.adds_sums ? c.random({n.channels}, DType::f32) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.norm_backward(s, {n.kind, at(dy), at(dsum), at(x), at(weight), at(mean), at(rstd), at(ds), at(dweight),
                            at(dbias), at(ds_sums)});
  });
  c.expect_close(ds, "ds", Result::rounded);
  c.expect_close(dweight, "dweight", Result::weight_gradient);
  if (n.bias) c.expect_close(dbias, "dbias", Result::weight_gradient);
  // Of values that one side may round to the format before.
  if (n.adds_sums) c.expect_close(ds_sums, "ds_sums", Result::rounded_sum, t);
}

void add_norm(DType t, const Norm& n, Size size, const std::string& what = "") {
  Norm forward = n, backward = n;
  if (what.empty()) {
    forward.place = n.channels % 2 ? Norm::over_input : Norm::apart;
    backward.place = n.channels % 3 == 0 ? Norm::over_input : Norm::apart;
  }
  add("NormForward", t, text_of(n) + what, size, [=](Case& c) { norm_forward(c, t, forward); });
  // RMSNorm with a bias has no gradient on CUDA, and no model.
  if (is_cuda() && n.bias && n.kind == spec::NormKind::rms) return;
  add("NormBackward", t, text_of(n) + what, size, [=](Case& c) { norm_backward(c, t, backward); });
}

void register_norms() {
  struct Width {
    int64_t channels;
    Size size;
  };
  constexpr Size kSmall = Size::small, kMedium = Size::medium;
  constexpr Width kWidths[] = {{64, kSmall},   {33, kSmall},    {768, kSmall},   {1600, kMedium},
                               {2048, kSmall}, {4096, kMedium}, {5120, kSmall},  {16384, kMedium},
                               {8, kMedium},   {1023, kMedium}, {20000, kMedium}};
  for (DType t : kFormats) {
    for (auto [channels, size] : kWidths) {
      for (auto kind : {spec::NormKind::rms, spec::NormKind::layer}) {
        for (bool residual : {true, false}) {
          const bool is_layer = kind == spec::NormKind::layer;
          for (int64_t rows : {1, 37, 5}) {
            const Size least = rows * channels > 200000 ? Size::large : rows * channels > 100000 ? kMedium : kSmall;
            add_norm(t, {kind, rows, channels, residual, is_layer, rows % 2 != 0}, std::max(size, least));
          }
          if (channels > 2048) continue;
          add_norm(t, {kind, 3001, channels, residual, is_layer, true}, channels > 64 ? Size::large : Size::medium);
        }
      }
    }
    // With and without a bias, a residual, in the place of the residual's gradient as the trainer does.
    int turn = 0;
    for (auto kind : {spec::NormKind::rms, spec::NormKind::layer}) {
      for (int64_t channels : {1, 3, 7, 17, 63, 65, 130}) {
        for (int i = 0; i < 3; ++i) {
          ++turn;
          add_norm(t, {kind, 1 + turn * 13 % 90, channels, i % 2 == 0, i != 1, false, Norm::over_residual},
                   Size::medium, "_in_place");
        }
      }
    }
  }
}

struct HeadNorm {
  int64_t tokens, dim;
  Size size;
};
constexpr int64_t kHeads = 6, kKvHeads = 2;

void head_norm_forward(Case& c, DType t, const HeadNorm& h) {
  const int64_t width = (kHeads + 2 * kKvHeads) * h.dim;
  const int qkv = c.random({h.tokens, width}, t), q = c.random({h.dim}, DType::f32, 0.2f, 1.0f),
            k = c.random({h.dim}, DType::f32, 0.2f, 1.0f), out = c.output({h.tokens, width}, t),
            rstd = c.output({h.tokens, kHeads + kKvHeads}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.head_norm_forward(s, {1e-6f, kHeads, kKvHeads, h.dim, at(qkv), at(q), at(k), at(out), at(rstd)});
  });
  c.expect_close(out, "out", Result::rounded);
  c.expect_close(rstd, "rstd", Result::statistic);
}

void head_norm_backward(Case& c, DType t, const HeadNorm& h) {
  const int64_t width = (kHeads + 2 * kKvHeads) * h.dim;
  const int dout = c.random({h.tokens, width}, t), qkv = c.random({h.tokens, width}, t),
            q = c.random({h.dim}, DType::f32, 0.2f, 1.0f), k = c.random({h.dim}, DType::f32, 0.2f, 1.0f),
            rstd = c.uniform({h.tokens, kHeads + kKvHeads}, DType::f32, 0.8f, 1.2f),
            dqkv = h.dim == 96 ? dout : c.output({h.tokens, width}, t), dq = c.random({h.dim}, DType::f32),
            dk = c.random({h.dim}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.head_norm_backward(
        s, {kHeads, kKvHeads, h.dim, at(dout), at(qkv), at(q), at(k), at(rstd), at(dqkv), at(dq), at(dk)});
  });
  c.expect_close(dqkv, "dqkv", Result::rounded);
  c.expect_close(dq, "dq_weight", Result::weight_gradient);
  c.expect_close(dk, "dk_weight", Result::weight_gradient);
}

void register_head_norms() {
  std::vector<HeadNorm> shapes;
  for (int64_t dim : {64, 20, 96}) shapes.push_back({5, dim, Size::small});
  for (int64_t dim : {8, 20, 64, 128}) shapes.push_back({21, dim, Size::medium});
  for (int64_t dim : {64, 20, 128, 96, 256, 8, 33}) shapes.push_back({301, dim, Size::medium});
  for (DType t : kFormats) {
    for (const HeadNorm& h : shapes) {
      const std::string shape = fmt::format("{}x{}x{}", h.tokens, kHeads + 2 * kKvHeads, h.dim);
      add("HeadNormForward", t, shape, h.size, [=](Case& c) { head_norm_forward(c, t, h); });
      add("HeadNormBackward", t, shape, h.size, [=](Case& c) { head_norm_backward(c, t, h); });
    }
  }
}

}  // namespace

void register_norm_cases() {
  register_norms();
  register_head_norms();
}

}  // namespace sinter::kernels::cases
