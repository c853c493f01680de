// Cases: products with what goes before or after them (kernels/fused.h).
#include <cmath>

#include "kernels/cases/case.h"
#include "kernels/fused.h"

namespace sinter::kernels::cases {
namespace {

struct Product {
  int64_t m, n, k;
  Size size;
};
std::string text_of(const Product& p) { return fmt::format("{}x{}x{}", p.m, p.n, p.k); }
float scale_of(const Product& p) { return 1.5f / std::sqrt(static_cast<float>(p.k)); }

// The gradients of a linear layer's weight and bias in one call.
void sums(Case& c, DType t, const Product& p, bool accumulate) {
  const int dy = c.random({p.k, p.m}, t), x = c.random({p.k, p.n}, t),
            dw = accumulate ? c.random({p.m, p.n}, DType::f32) : c.output({p.m, p.n}, DType::f32),
            db = accumulate ? c.random({p.m}, DType::f32) : c.output({p.m}, DType::f32);
  c.bits_may_differ();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(dy), args.product.b.data = at(x), args.product.c = at(dw);
    args.product.transpose_a = true, args.product.accumulate = accumulate;
    args.a_sums = at(db), args.accumulate_sums = accumulate;
    fused_matmul(table, s, args);
  });
  c.expect_close(dw, "dw", Result::weight_gradient);
  c.expect_close(db, "db", Result::weight_gradient);
}

// GELU in the product, and its gradient in the product that comes back through it. What is kept between them is the
// input of GELU or its slope.
void activation(Case& c, DType t, const Product& p, spec::Activation kind, bool bias, bool keeps_slope) {
  const int a = c.random({p.m, p.k}, t), b = c.random({p.n, p.k}, t, scale_of(p)), y = c.output({p.m, p.n}, t),
            kept = c.output({p.m, p.n}, t), vector = bias ? c.random({p.n}, t) : -1;
  c.bits_may_differ();  // the first call may compare the fused kernel with separate ones and keep either
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
    args.product.transpose_b = true, args.activation = kind;
    (keeps_slope ? args.slope : args.pre_activation) = at(kept);
    fused_matmul(table, s, args);
  });
  c.expect_close(kept, keeps_slope ? "slope" : "pre", keeps_slope ? Result::fused_product : Result::product);
  c.expect_close(y, "c", Result::fused_product);
}

void activation_back(Case& c, DType t, const Product& p, spec::Activation kind, bool has_sums, bool keeps_slope) {
  const int a = c.random({p.m, p.k}, t), b = c.random({p.k, p.n}, t, scale_of(p)), y = c.output({p.m, p.n}, t),
            x = c.random({p.m, p.n}, t), total = has_sums ? c.random({p.n}, DType::f32) : -1;
  c.bits_may_differ();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y);
    args.activation = kind, args.c_sums = at(total);
    (keeps_slope ? args.slope_input : args.activation_input) = at(x);
    fused_matmul(table, s, args);
  });
  c.expect_close(y, "c", Result::fused_product);
  // Of values that one side may round to the format before.
  if (has_sums) c.expect_close(total, "c_sums", Result::fused_product, t);
}

void add_activation(DType t, const Product& p, spec::Activation kind, const char* name) {
  for (bool has : {true, false}) {
    for (bool slope : {false, true}) {
      add("FusedMatmul", t, fmt::format("{}_{}{}{}", text_of(p), name, has ? "_bias" : "", slope ? "_slope" : ""),
          p.size, [=](Case& c) { activation(c, t, p, kind, has, slope); });
      add("FusedMatmul", t, fmt::format("{}_{}_back{}{}", text_of(p), name, has ? "_sums" : "", slope ? "_slope" : ""),
          p.size, [=](Case& c) { activation_back(c, t, p, kind, has, slope); });
    }
  }
}

// The same with a gate: p.n is the width of act(gate) * up.
void gated(Case& c, DType t, const Product& p, spec::Activation kind, bool bias) {
  const int a = c.random({p.m, p.k}, t), b = c.random({2 * p.n, p.k}, t, scale_of(p)), y = c.output({p.m, p.n}, t),
            pre = c.output({p.m, 2 * p.n}, t), vector = bias ? c.random({2 * p.n}, t) : -1;
  c.bits_may_differ();  // the first call may compare the fused kernel with separate ones and keep either
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
    args.product.transpose_b = true, args.activation = kind, args.pre_activation = at(pre), args.gated = true;
    fused_matmul(table, s, args);
  });
  c.expect_close(pre, "pre", Result::product);
  c.expect_close(y, "c", Result::fused_product);
}

void gated_back(Case& c, DType t, const Product& p, spec::Activation kind) {
  const int a = c.random({p.m, p.k}, t), b = c.random({p.k, p.n}, t, scale_of(p)), room = c.random({p.m, p.n}, t),
            x = c.random({p.m, 2 * p.n}, t), dx = c.output({p.m, 2 * p.n}, t);
  c.bits_may_differ();
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(room);
    args.activation = kind, args.activation_input = at(x), args.gated = true, args.gate_up_gradient = at(dx);
    fused_matmul(table, s, args);
  });
  c.expect_close(dx, "dx", Result::fused_product);
}

void add_gated(DType t, const Product& p, spec::Activation kind, const char* name) {
  const std::string shape = fmt::format("{}_{}", text_of(p), name);
  for (bool bias : {false, true}) {
    add("GatedMatmul", t, shape + (bias ? "_bias" : ""), p.size, [=](Case& c) { gated(c, t, p, kind, bias); });
  }
  add("GatedMatmul", t, shape + "_back", p.size, [=](Case& c) { gated_back(c, t, p, kind); });
}

// A product whose first heads are rotated.
struct Rotated {
  int64_t m, k, head, rotated, heads;
  Size size;
};

void rotated(Case& c, DType t, const Rotated& r, bool bias) {
  const int64_t n = r.heads * r.head;
  const int a = c.random({r.m, r.k}, t), b = c.random({n, r.k}, t, 1.0f / std::sqrt(static_cast<float>(r.k))),
            y = c.output({r.m, n}, t), angles = c.uniform({r.m, r.head}, DType::f32, -1.0f, 1.0f),
            vector = bias ? c.random({n}, t) : -1;
  c.bits_may_differ();  // the first call may compare the fused kernel with separate ones and keep either
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    RotatedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
    args.product.transpose_b = true;
    args.rope = {.num_rotated = r.rotated, .head_dim = r.head, .x = at(y), .cos_sin = at(angles)};
    rotated_matmul(table, s, args);
  });
  c.expect_close(y, "c", Result::fused_product);
}

void add_rotated(DType t, const Rotated& r) {
  for (bool bias : {false, true}) {
    add("RotatedMatmul", t,
        fmt::format("{}x{}_to_{}_of_{}x{}{}", r.m, r.k, r.rotated, r.heads, r.head, bias ? "_bias" : ""), r.size,
        [=](Case& c) { rotated(c, t, r, bias); });
  }
}

// Sizes that kernels with tiles of 128 rows take: edges in every direction, more tiles than multiprocessors.
void add_tiled(DType t) {
  constexpr Size kSmall = Size::small, kMedium = Size::medium, kLarge = Size::large;
  for (const Product& p : {Product{128, 8, 8, kSmall}, Product{333, 264, 136, kSmall}, Product{1031, 72, 72, kMedium},
                           Product{2309, 1544, 776, kLarge}}) {
    add_activation(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
  }
  for (const Product& p : {Product{128, 64, 8, kSmall}, Product{333, 264, 136, kSmall}, Product{1031, 192, 72, kLarge},
                           Product{129, 320, 776, kLarge}, Product{2309, 1536, 200, kLarge}}) {
    add_gated(t, p, spec::Activation::silu, "silu");
  }
  add_rotated(t, {4096, 8, 64, 1, 1, kSmall});
  add_rotated(t, {4099, 72, 64, 3, 5, kSmall});
  add_rotated(t, {4113, 40, 128, 2, 3, kSmall});
  add_rotated(t, {9001, 776, 64, 10, 12, kLarge});
}

}  // namespace

void register_fused_matmul_cases() {
  for (DType t : kFormats) {
    for (const Product& p : {Product{16, 16, 16, Size::small}, Product{37, 53, 29, Size::small},
                             Product{1, 768, 768, Size::medium}, Product{128, 2304, 768, Size::large},
                             Product{130, 70, 1000, Size::medium}, Product{33, 50257, 64, Size::large}}) {
      for (bool accumulate : {true, false}) {
        add("MatmulSums", t, fmt::format("{}{}", text_of(p), accumulate ? "_added" : ""), p.size,
            [=](Case& c) { sums(c, t, p, accumulate); });
      }
      add_rotated(t, {p.m, p.k, 16, 2, 3, p.size});
      add_activation(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
      add_activation(t, p, spec::Activation::silu, "silu");
      add_gated(t, p, spec::Activation::silu, "silu");
      add_gated(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
    }
    if (t != DType::f32) add_tiled(t);
  }
}

}  // namespace sinter::kernels::cases
