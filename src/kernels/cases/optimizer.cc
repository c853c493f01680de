// Cases: the optimizers and what decides a step.
#include <cmath>

#include "base/rng.h"
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Adamw {
  DType grad, state;
  int64_t n;
  DType copy;  // f32 and has_copy false: none
  bool has_copy, skips;
};

void adamw(Case& c, const Adamw& o) {
  const int master = c.random({o.n}, DType::f32), g = c.random({o.n}, o.grad), m = c.random({o.n}, o.state, 0.1f),
            v = c.uniform({o.n}, o.state, 0.001f, 0.1f), copy = o.has_copy ? c.random({o.n}, o.copy) : -1,
            control = c.floats({2}, {0.5f, o.skips ? 0.0f : 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    AdamwArgs a;
    a.master = at(master), a.grad = at(g), a.m = at(m), a.v = at(v), a.copy = at(copy), a.control = at(control);
    a.lr = 0.01f, a.weight_decay = 0.1f, a.step = 3, a.key = {5, 6};
    table.adamw(s, a);
  });
  c.expect_close(master, "master", Result::statistic);
  c.expect_close(m, "m", Result::state);
  c.expect_close(v, "v", Result::state);
  if (o.has_copy) c.expect_close(copy, "copy", Result::rounded);
}

void register_adamw() {
  for (DType grad : {DType::f32, DType::bf16}) {
    for (DType state : {DType::f32, DType::bf16}) {
      for (auto [n, size] : {std::pair{1000, Size::small},
                             {1003, Size::small},
                             {1, Size::medium},
                             {17, Size::medium},
                             {1025, Size::medium},
                             {40001, Size::medium}}) {
        for (auto [copy, has_copy] :
             {std::pair{DType::bf16, true}, {DType::f16, true}, {DType::f32, true}, {DType::f32, false}}) {
          for (bool skips : {false, true}) {
            const bool is_new = (has_copy && copy == DType::f32) || (skips && copy != DType::bf16);
            const Adamw o{grad, state, n, copy, has_copy, skips};
            add("Adamw", grad,
                fmt::format("{}_state_{}_copy_{}{}", n, base::dtype_name(state),
                            has_copy ? base::dtype_name(copy) : "none", skips ? "_skipped" : ""),
                is_new ? Size::medium : size, [=](Case& c) { adamw(c, o); });
          }
        }
      }
    }
  }
}

void adamw_8bit(Case& c, DType grad, int64_t n) {
  constexpr int64_t kBlock = Adamw8bitArgs::kBlock;
  std::vector<float> even(256), positive(256);
  for (size_t i = 0; i < even.size(); ++i) even[i] = -1.0f + 2.0f * static_cast<float>(i) / 255.0f;
  for (size_t i = 0; i < positive.size(); ++i) positive[i] = static_cast<float>(i) / 255.0f;
  const int64_t blocks = (n + kBlock - 1) / kBlock;
  std::vector<int32_t> codes(static_cast<size_t>((n + 3) / 4));
  const base::CounterRng rng{3, static_cast<uint64_t>(n)};
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<int32_t>(rng.bits(i));
  const int64_t words = static_cast<int64_t>(codes.size());
  const int master = c.random({n}, DType::f32), g = c.random({n}, grad), m = c.integers({words}, codes),
            v = c.integers({words}, codes), m_scales = c.uniform({blocks}, DType::f32, 0.1f, 0.3f),
            v_scales = c.uniform({blocks}, DType::f32, 0.01f, 0.03f), m_map = c.floats({256}, even),
            v_map = c.floats({256}, positive), copy = c.output({n}, DType::bf16), control = c.floats({2}, {0.5f, 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    auto bytes = [&](int handle) { return Tensor::view_of(at(handle).raw(), {n}, DType::u8, at(handle).device()); };
    Adamw8bitArgs a;
    a.master = at(master), a.grad = at(g), a.m = bytes(m), a.v = bytes(v), a.m_scales = at(m_scales);
    a.v_scales = at(v_scales), a.m_map = at(m_map), a.v_map = at(v_map), a.copy = at(copy), a.control = at(control);
    a.lr = 0.01f, a.weight_decay = 0.1f, a.step = 3;
    table.adamw_8bit(s, a);
  });
  c.expect_close(master, "master", Result::statistic);
  c.expect_close(m_scales, "m_scales", Result::statistic);
  c.expect_close(v_scales, "v_scales", Result::statistic);
  c.expect_close(copy, "copy", Result::rounded);
}

void sgd(Case& c, DType grad, int64_t n, bool has_velocity, bool has_copy) {
  const int master = c.random({n}, DType::f32), g = c.random({n}, grad),
            velocity = has_velocity ? c.random({n}, DType::f32) : -1, copy = has_copy ? c.output({n}, DType::bf16) : -1,
            control = c.floats({2}, {0.5f, 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    SgdArgs a;
    a.master = at(master), a.grad = at(g), a.velocity = at(velocity), a.copy = at(copy), a.control = at(control);
    a.lr = 0.1f, a.momentum = 0.9f, a.weight_decay = 0.01f;
    table.sgd(s, a);
  });
  c.expect_close(master, "master", Result::statistic);
  if (has_velocity) c.expect_close(velocity, "velocity", Result::statistic);
  if (has_copy) c.expect_close(copy, "copy", Result::rounded);
}

void muon_momentum(Case& c, DType grad, DType state, DType out, int64_t n, bool skips) {
  const int g = c.random({n}, grad), b = c.random({n}, state), d = skips ? c.random({n}, out) : c.output({n}, out),
            control = c.floats({2}, {0.5f, skips ? 0.0f : 1.0f});
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MuonMomentumArgs a;
    a.grad = at(g), a.momentum = at(b), a.direction = at(d), a.control = at(control), a.key = {5, 6};
    table.muon_momentum(s, a);
  });
  c.expect_close(b, "momentum", Result::state);
  c.expect_close(d, "direction", Result::rounded);
}

void register_sgd_and_muon() {
  for (DType grad : {DType::f32, DType::bf16}) {
    for (auto [n, size] : {std::pair{1000, Size::small}, {1003, Size::small}, {3001, Size::medium}}) {
      for (bool velocity : {true, false}) {
        for (bool copy : {true, false}) {
          add("Sgd", grad, fmt::format("{}{}{}", n, velocity ? "_velocity" : "", copy ? "" : "_without_a_copy"),
              copy ? size : Size::medium, [=, n = n](Case& c) { sgd(c, grad, n, velocity, copy); });
        }
      }
      for (DType state : {DType::f32, DType::bf16}) {
        for (DType out : {DType::f32, DType::bf16}) {
          for (bool skips : {false, true}) {
            add("MuonMomentum", grad,
                fmt::format("{}_state_{}_to_{}{}", n, base::dtype_name(state), base::dtype_name(out),
                            skips ? "_skipped" : ""),
                skips ? Size::medium : size, [=, n = n](Case& c) { muon_momentum(c, grad, state, out, n, skips); });
          }
        }
      }
    }
  }
}

// A decision from a state in the middle of a run.
struct Decision {
  const char* name;
  float loss_sum, norm_squared;
  OutlierAction action;
  bool scales;
};

void step_control(Case& c, const Decision& d) {
  constexpr int32_t kWindow = 8;
  std::vector<float> state{30, 1, 0, kWindow, 3, d.scales ? 1024.0f : 1.0f, 4, 0};
  for (int i = 0; i < 2 * kWindow; ++i) state.push_back(2.0f + 0.125f * static_cast<float>(i % 5));
  const int loss = c.floats({1}, {d.loss_sum}),
            squares = c.floats({1}, {d.norm_squared * (d.scales ? 1024.0f * 1024.0f : 1.0f)}),
            held = c.floats({step_state_size(kWindow)}, state), control = c.output({kControlSize}, DType::f32),
            record = c.floats({kRecordSize}, std::vector<float>(kRecordSize, 0.0f));
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    StepControlArgs a;
    a.rule = {.max_norm = 1,
              .on_outlier = d.action,
              .window = kWindow,
              .scale_growth = d.scales ? 2.0f : 0.0f,
              .growth_interval = 5};
    a.loss_sum = at(loss), a.loss_factor = 0.1f, a.norm_squared = at(squares);
    a.state = at(held), a.control = at(control), a.record = at(record);
    table.step_control(s, a);
  });
  c.expect_close(held, "state", Result::exact_sum);
  c.expect_close(control, "control", Result::exact_sum);
  if (std::isfinite(d.loss_sum) && std::isfinite(d.norm_squared)) c.expect_close(record, "record", Result::exact_sum);
}

void register_step_control() {
  if (!has_own<&KernelTable::step_control>()) return;
  struct Numbers {
    const char* name;
    float loss_sum, norm_squared;
  };
  for (auto [name, loss, squares] :
       {Numbers{"usual", 20, 4}, Numbers{"loss_nan", NAN, 4}, Numbers{"norm_infinite", 20, INFINITY},
        Numbers{"loss_large", 200, 4}, Numbers{"norm_small", 20, 0.01f}}) {
    for (bool scales : {false, true}) {
      for (auto [action, action_name] :
           {std::pair{OutlierAction::off, "off"}, {OutlierAction::skip, "skip"}, {OutlierAction::stop, "stop"}}) {
        const Decision d{name, loss, squares, action, scales};
        add("StepControl", DType::f32, fmt::format("{}_outlier_{}{}", name, action_name, scales ? "_scaled" : ""),
            Size::small, [=](Case& c) { step_control(c, d); });
      }
    }
  }
}

}  // namespace

void register_optimizer_cases() {
  register_adamw();
  if (has_own<&KernelTable::adamw_8bit>()) {
    for (DType grad : {DType::f32, DType::bf16}) {
      for (int64_t n : {300, 1024}) {
        add("Adamw8bit", grad, std::to_string(n), Size::medium, [=](Case& c) { adamw_8bit(c, grad, n); });
      }
    }
  }
  register_sgd_and_muon();
  register_step_control();
}

}  // namespace sinter::kernels::cases
