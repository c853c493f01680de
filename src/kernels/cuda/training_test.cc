// Cases: cross entropy, the optimizers, the gradient's norm and clipping.
#include <cmath>

#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

// `apart`: further columns, in a piece of their own.
void test_cross_entropy(DType t, int64_t rows, int64_t split, bool gradient, int64_t apart = 0) {
  if (!wants("cross_entropy")) return;
  Case c("cross_entropy", t, fmt::format("({}, {} + {}) gradient {}", rows, split, apart, gradient));
  const int64_t vocab = split + apart;
  std::vector<int32_t> ids;
  for (int64_t r = 0; r < rows; ++r) ids.push_back(r % 5 == 4 ? -1 : static_cast<int32_t>((r * 7919) % vocab));
  ids[0] = static_cast<int32_t>(vocab - 1);
  int logits = c.random({rows, split}, t, 3.0f), last = apart ? c.random({rows, apart}, t, 3.0f) : -1;
  int targets = c.integers({rows}, ids), losses = c.output({rows}, DType::f32);
  int scale = c.floats({1}, {0.7f});
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    table.cross_entropy(s, {at(logits), at(targets), at(losses), at(scale), gradient, at(last)});
  });
  c.expect_close(losses, "losses", 1e-5);
  if (!gradient) return;
  c.expect_close(logits, "gradient", std::max(2e-5, rounding_limit(t)));
  if (apart) c.expect_close(last, "gradient apart", std::max(2e-5, rounding_limit(t)));
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

void test_muon_momentum(DType grad, DType state, DType out, int64_t n) {
  if (!wants("muon_momentum")) return;
  Case c("muon_momentum", grad, fmt::format("{} state {} to {}", n, base::dtype_name(state), base::dtype_name(out)));
  int g = c.random({n}, grad), b = c.random({n}, state), d = c.output({n}, out), control = c.floats({2}, {0.5f, 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    MuonMomentumArgs a;
    a.grad = at(g), a.momentum = at(b), a.direction = at(d), a.control = at(control), a.key = {5, 6};
    table.muon_momentum(s, a);
  });
  c.expect_close(b, "momentum", state == DType::bf16 ? 1e-3 : 1e-5);
  c.expect_close(d, "direction", std::max(1e-5, rounding_limit(out)));
}

void test_sums_and_norms() {
  for (int64_t n : {int64_t{1}, int64_t{1003}, int64_t{300000}}) {
    if (wants("sum")) {
      Case c("sum", DType::f32, std::to_string(n));
      int x = c.random({n}, DType::f32, 1.0f, 2.0f), total = c.output({1}, DType::f32);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) { table.sum(s, {at(x), at(total)}); });
      c.expect_close(total, "total", 1e-6);
    }
    for (DType t : {DType::f32, DType::bf16}) {
      if (!wants("normalize")) continue;
      Case c("normalize", t, fmt::format("(3, {})", n));
      int x = c.random({3, n}, t, 4.0f);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) { table.normalize(s, {at(x)}); });
      c.expect_close(x, "x", std::max(1e-5, rounding_limit(t)));
    }
  }
}

// Verdicts, control and state of single decisions, from a state in the middle of a run.
void test_step_control() {
  if (!wants("step_control")) return;
  constexpr int32_t kWindow = 8;
  struct Numbers {
    float loss_sum, norm_squared;
  };
  for (Numbers numbers :
       {Numbers{20, 4}, Numbers{NAN, 4}, Numbers{20, INFINITY}, Numbers{200, 4}, Numbers{20, 0.01f}}) {
    for (bool scales : {false, true}) {
      for (OutlierAction action : {OutlierAction::off, OutlierAction::skip, OutlierAction::stop}) {
        Case c("step_control", DType::f32,
               fmt::format("loss {} squared {} outlier {}{}", numbers.loss_sum, numbers.norm_squared,
                           static_cast<int>(action), scales ? " scaled" : ""));
        std::vector<float> state{30, 1, 0, kWindow, 3, scales ? 1024.0f : 1.0f, 4, 0};
        for (int i = 0; i < 2 * kWindow; ++i) state.push_back(2.0f + 0.125f * static_cast<float>(i % 5));
        int loss = c.floats({1}, {numbers.loss_sum}),
            squares = c.floats({1}, {numbers.norm_squared * (scales ? 1024.0f * 1024.0f : 1.0f)}),
            held = c.floats({step_state_size(kWindow)}, state), control = c.output({kControlSize}, DType::f32),
            record = c.floats({kRecordSize}, std::vector<float>(kRecordSize, 0.0f));
        c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
          StepControlArgs a;
          a.rule = {.max_norm = 1,
                    .on_outlier = action,
                    .window = kWindow,
                    .scale_growth = scales ? 2.0f : 0.0f,
                    .growth_interval = 5};
          a.loss_sum = at(loss), a.loss_factor = 0.1f, a.norm_squared = at(squares);
          a.state = at(held), a.control = at(control), a.record = at(record);
          table.step_control(s, a);
        });
        c.expect_close(held, "state", 1e-6);
        c.expect_close(control, "control", 1e-6);
        if (std::isfinite(numbers.loss_sum) && std::isfinite(numbers.norm_squared))
          c.expect_close(record, "record", 1e-6);
      }
    }
  }
}

void test_sum_squares() {
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
}

}  // namespace

void test_training() {
  std::vector<int64_t> vocabularies = {64, 33, 1000, 50257, 50304, 7};
  if (test_options().small) vocabularies = {64, 33, 1000};
  for (DType t : kFormats) {
    for (int64_t vocab : vocabularies) {
      for (bool gradient : {true, false}) test_cross_entropy(t, 17, vocab, gradient);
    }
    for (int64_t apart : {1, 17, 64}) test_cross_entropy(t, 17, 1024, true, apart);
    test_cross_entropy(t, 17, 33, true, 5);
    test_cross_entropy(t, 401, 1016, true);  // several rows a block
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
  for (DType grad : {DType::f32, DType::bf16}) {
    for (DType state : {DType::f32, DType::bf16}) {
      for (DType out : {DType::f32, DType::bf16}) {
        for (int64_t n : {int64_t{1000}, int64_t{1003}}) test_muon_momentum(grad, state, out, n);
      }
    }
  }
  test_sums_and_norms();
  test_step_control();
  test_sum_squares();
}

}  // namespace sinter::kernels::cuda_test
