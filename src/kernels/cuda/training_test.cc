// Cases: cross entropy, the optimizers, the gradient's norm and clipping.
#include <cmath>

#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

void test_cross_entropy(DType t, int64_t rows, int64_t vocab, bool gradient) {
  if (!wants("cross_entropy")) return;
  Case c("cross_entropy", t, fmt::format("({}, {}) gradient {}", rows, vocab, gradient));
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 4 ? -1 : static_cast<int32_t>((r * 7919) % vocab));
  ids[0] = static_cast<int32_t>(vocab - 1);
  int logits = c.random({rows, vocab}, t, 3.0f), targets = c.integers({rows}, ids),
      losses = c.output({rows}, DType::f32);
  int scale = c.floats({1}, {0.7f});
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    table.cross_entropy(s, {at(logits), at(targets), at(losses), at(scale), gradient});
  });
  c.expect_close(losses, "losses", 1e-5);
  if (gradient) c.expect_close(logits, "gradient", std::max(2e-5, rounding_limit(t)));
}

void test_adamw(DType grad, DType state, int64_t n, DType copy_format, bool has_copy, bool skip) {
  if (!wants("adamw")) return;
  Case c("adamw", grad,
         fmt::format("{} state {} copy {}{}", n, base::dtype_name(state),
                     has_copy ? base::dtype_name(copy_format) : "none", skip ? " skip" : ""));
  int master = c.random({n}, DType::f32), g = c.random({n}, grad), m = c.random({n}, state, 0.1f);
  int v = c.uniform({n}, state, 0.001f, 0.1f), copy = has_copy ? c.random({n}, copy_format) : -1;
  int control = c.floats({2}, {0.5f, skip ? 0.0f : 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    AdamwArgs a;
    a.master = at(master), a.grad = at(g), a.m = at(m), a.v = at(v), a.copy = at(copy), a.control = at(control);
    a.lr = 0.01f, a.weight_decay = 0.1f, a.step = 3, a.key = {5, 6};
    table.adamw(s, a);
  });
  // A stochastic rounding may fall to the other side when the f32 sums differ in the last bit: rare, one bf16 step
  // each.
  double limit = state == DType::bf16 ? 1e-3 : 1e-5;
  c.expect_close(master, "master", 1e-5);
  c.expect_close(m, "m", limit);
  c.expect_close(v, "v", limit);
  if (has_copy) c.expect_close(copy, "copy", rounding_limit(copy_format));
}

void test_sgd(DType grad, int64_t n, bool velocity) {
  if (!wants("sgd")) return;
  Case c("sgd", grad, fmt::format("{} velocity {}", n, velocity));
  int master = c.random({n}, DType::f32), g = c.random({n}, grad), speed = velocity ? c.random({n}, DType::f32) : -1;
  int copy = c.output({n}, DType::bf16), control = c.floats({2}, {0.5f, 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    SgdArgs a;
    a.master = at(master), a.grad = at(g), a.velocity = at(speed), a.copy = at(copy), a.control = at(control);
    a.lr = 0.1f, a.momentum = 0.9f, a.weight_decay = 0.01f;
    table.sgd(s, a);
  });
  c.expect_close(master, "master", 1e-5);
  if (velocity) c.expect_close(speed, "velocity", 1e-5);
  c.expect_close(copy, "copy", rounding_limit(DType::bf16));
}

void test_norm_and_clip() {
  for (DType t : {DType::f32, DType::bf16}) {
    for (int64_t n : {int64_t{1}, int64_t{1003}, int64_t{3000000}}) {
      if (!wants("sum_squares") || (test_options().small && n > 2000)) continue;
      Case c("sum_squares", t, std::to_string(n));
      int x = c.random({n}, t), total = c.floats({1}, {1.0f});
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
        table.sum_squares(s, {at(x), at(total)});
      });
      c.expect_close(total, "total", 1e-5);
    }
  }
  if (!wants("clip_control")) return;
  for (float max_norm : {0.0f, 1.0f, 100.0f}) {
    for (float squared : {4.0f, INFINITY}) {
      Case c("clip_control", DType::f32, fmt::format("max {} squared {}", max_norm, squared));
      int norm_squared = c.floats({1}, {squared}), control = c.output({2}, DType::f32),
          norm = c.output({1}, DType::f32);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
        table.clip_control(s, {at(norm_squared), max_norm, 0.25f, at(control), at(norm)});
      });
      if (std::isfinite(squared)) {
        c.expect_close(control, "control", 1e-6);
        c.expect_close(norm, "norm", 1e-6);
      } else {
        c.expect_equal(control, "control");
      }
    }
  }
}

}  // namespace

void test_training() {
  std::vector<int64_t> vocabularies = {64, 33, 1000, 50257, 50304, 7};
  if (test_options().small) vocabularies = {64, 33, 1000};
  for (DType t : kFormats) {
    for (int64_t vocab : vocabularies) {
      for (bool gradient : {true, false}) test_cross_entropy(t, 17, vocab, gradient);
    }
  }
  for (DType grad : {DType::f32, DType::bf16}) {
    for (int64_t n : {int64_t{1000}, int64_t{1003}}) {
      for (DType state : {DType::f32, DType::bf16}) {
        test_adamw(grad, state, n, DType::bf16, true, false);
        test_adamw(grad, state, n, DType::f16, true, false);
        test_adamw(grad, state, n, DType::f32, false, false);
        test_adamw(grad, state, n, DType::bf16, true, true);
      }
      for (bool velocity : {true, false}) test_sgd(grad, n, velocity);
    }
  }
  test_norm_and_clip();
}

}  // namespace sinter::kernels::cuda_test
