// Cases: matrix products, plain and over groups of rows.
#include <cmath>

#include "kernels/cuda/test_harness.h"
#include "kernels/fused.h"

namespace sinter::kernels::cuda_test {
namespace {

struct Product {
  int64_t m, n, k;
};

void test_product(DType t, DType out, const Product& p, bool transpose_a, bool transpose_b, bool accumulate,
                  bool bias) {
  if (!wants("matmul")) return;
  Case c("matmul", t,
         fmt::format("{}x{}x{} {}{} to {}{}{}", p.m, p.n, p.k, transpose_a ? "T" : "N", transpose_b ? "T" : "N",
                     base::dtype_name(out), accumulate ? " add" : "", bias ? " bias" : ""));
  int a = c.random(transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, t),
      b = c.random(transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, t);
  int y = accumulate ? c.random({p.m, p.n}, out) : c.output({p.m, p.n}, out), vector = bias ? c.random({p.n}, out) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.bias = at(vector);
    args.transpose_a = transpose_a, args.transpose_b = transpose_b, args.accumulate = accumulate;
    args.alpha = bias ? 1.0f : 0.5f;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", std::max(2e-5, rounding_limit(out)));
}

// Products of one shape in one call, with an addend: Muon's iterations.
void test_batch(DType t, const Product& p, int64_t batch, bool transpose_a, bool transpose_b, bool addend) {
  if (!wants("matmul_batch")) return;
  Case c("matmul_batch", t,
         fmt::format("{} of {}x{}x{} {}{}{}", batch, p.m, p.n, p.k, transpose_a ? "T" : "N", transpose_b ? "T" : "N",
                     addend ? " addend" : ""));
  int a = c.random(transpose_a ? Shape{batch * p.k, p.m} : Shape{batch * p.m, p.k}, t),
      b = c.random(transpose_b ? Shape{batch * p.n, p.k} : Shape{batch * p.k, p.n}, t);
  int y = c.output({batch * p.m, p.n}, t), add = addend ? c.random({batch * p.m, p.n}, t) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.addend = at(add);
    args.transpose_a = transpose_a, args.transpose_b = transpose_b;
    args.alpha = 0.5f, args.beta = -1.5f, args.batch = batch;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", std::max(2e-5, rounding_limit(t)));
}

// The gradients of a linear layer's weight and bias in one call.
void test_sums(DType t, const Product& p, bool accumulate) {
  if (!wants("matmul_sums")) return;
  Case c("matmul_sums", t, fmt::format("{}x{}x{}{}", p.m, p.n, p.k, accumulate ? " add" : ""));
  int dy = c.random({p.k, p.m}, t), x = c.random({p.k, p.n}, t);
  int dw = accumulate ? c.random({p.m, p.n}, DType::f32) : c.output({p.m, p.n}, DType::f32);
  int db = accumulate ? c.random({p.m}, DType::f32) : c.output({p.m}, DType::f32);
  c.skip_determinism();
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    FusedMatmulArgs args;
    args.product.a = at(dy), args.product.b.data = at(x), args.product.c = at(dw);
    args.product.transpose_a = true, args.product.accumulate = accumulate;
    args.a_sums = at(db), args.accumulate_sums = accumulate;
    fused_matmul(table, s, args);
  });
  c.expect_close(dw, "dw", 2e-5);
  c.expect_close(db, "db", 2e-5);
}

// GELU in the product, and its gradient in the product that comes back through it. What is kept between them is the
// input of GELU or its slope.
void test_activation_product(DType t, const Product& p, spec::Activation kind, const char* name) {
  if (!wants("fused_matmul")) return;
  std::string shape = fmt::format("{}x{}x{} {}", p.m, p.n, p.k, name);
  float scale = 1.5f / std::sqrt(static_cast<float>(p.k));
  for (auto [bias, keeps_slope] : std::vector<std::pair<bool, bool>>{{1, 0}, {0, 0}, {1, 1}, {0, 1}}) {
    Case c("fused_matmul", t, shape + (bias ? " bias" : "") + (keeps_slope ? " slope" : ""));
    int a = c.random({p.m, p.k}, t), b = c.random({p.n, p.k}, t, scale), y = c.output({p.m, p.n}, t),
        kept = c.output({p.m, p.n}, t);
    int vector = bias ? c.random({p.n}, t) : -1;
    c.skip_determinism();  // the first call may compare the fused kernel with separate ones and keep either
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      FusedMatmulArgs args;
      args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
      args.product.transpose_b = true, args.activation = kind;
      (keeps_slope ? args.slope : args.pre_activation) = at(kept);
      fused_matmul(table, s, args);
    });
    c.expect_close(kept, keeps_slope ? "slope" : "pre", std::max(2e-5, (keeps_slope ? 2 : 1) * rounding_limit(t)));
    c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
  }
  for (auto [sums, keeps_slope] : std::vector<std::pair<bool, bool>>{{1, 0}, {0, 0}, {1, 1}, {0, 1}}) {
    Case c("fused_matmul", t, shape + " back" + (sums ? ", sums" : "") + (keeps_slope ? ", slope" : ""));
    int a = c.random({p.m, p.k}, t), b = c.random({p.k, p.n}, t, scale), y = c.output({p.m, p.n}, t),
        x = c.random({p.m, p.n}, t), total = sums ? c.random({p.n}, DType::f32) : -1;
    c.skip_determinism();
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      FusedMatmulArgs args;
      args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y);
      args.activation = kind, args.c_sums = at(total);
      (keeps_slope ? args.slope_input : args.activation_input) = at(x);
      fused_matmul(table, s, args);
    });
    c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
    // Of values that one side may round to the format before.
    if (sums) c.expect_close(total, "c_sums", std::max(2e-5, 2 * rounding_limit(t)));
  }
}

// The same with a gate: p.n is the width of act(gate) * up.
void test_gated_product(DType t, const Product& p, spec::Activation kind, const char* name) {
  if (!wants("matmul_gated")) return;
  std::string shape = fmt::format("{}x{}x{} {}", p.m, p.n, p.k, name);
  float scale = 1.5f / std::sqrt(static_cast<float>(p.k));
  for (bool bias : {false, true}) {
    Case c("matmul_gated", t, shape + (bias ? " bias" : ""));
    int a = c.random({p.m, p.k}, t), b = c.random({2 * p.n, p.k}, t, scale), y = c.output({p.m, p.n}, t),
        pre = c.output({p.m, 2 * p.n}, t);
    int vector = bias ? c.random({2 * p.n}, t) : -1;
    c.skip_determinism();  // the first call may compare the fused kernel with separate ones and keep either
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      FusedMatmulArgs args;
      args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
      args.product.transpose_b = true, args.activation = kind, args.pre_activation = at(pre), args.gated = true;
      fused_matmul(table, s, args);
    });
    c.expect_close(pre, "pre", std::max(2e-5, rounding_limit(t)));
    c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
  }
  Case c("matmul_gated_slope", t, shape);
  int a = c.random({p.m, p.k}, t), b = c.random({p.k, p.n}, t, scale), room = c.random({p.m, p.n}, t),
      x = c.random({p.m, 2 * p.n}, t), dx = c.output({p.m, 2 * p.n}, t);
  c.skip_determinism();
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    FusedMatmulArgs args;
    args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(room);
    args.activation = kind, args.activation_input = at(x), args.gated = true, args.gate_up_gradient = at(dx);
    fused_matmul(table, s, args);
  });
  c.expect_close(dx, "dx", std::max(2e-5, 2 * rounding_limit(t)));
}

// A product whose first heads are rotated.
void test_rotated_product(DType t, int64_t m, int64_t k, int64_t head, int64_t rotated, int64_t heads) {
  if (!wants("matmul_rope")) return;
  for (bool bias : {false, true}) {
    Case c("matmul_rope", t,
           fmt::format("{} rows of {} to {} of {} heads of {}{}", m, k, rotated, heads, head, bias ? " bias" : ""));
    const int64_t n = heads * head;
    int a = c.random({m, k}, t), b = c.random({n, k}, t, 1.0f / std::sqrt(static_cast<float>(k))),
        y = c.output({m, n}, t), angles = c.uniform({m, head}, DType::f32, -1.0f, 1.0f);
    int vector = bias ? c.random({n}, t) : -1;
    c.skip_determinism();  // the first call may compare the fused kernel with separate ones and keep either
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      RotatedMatmulArgs args;
      args.product.a = at(a), args.product.b.data = at(b), args.product.c = at(y), args.product.bias = at(vector);
      args.product.transpose_b = true;
      args.rope = {.num_rotated = rotated, .head_dim = head, .x = at(y), .cos_sin = at(angles)};
      rotated_matmul(table, s, args);
    });
    c.expect_close(y, "c", std::max(2e-5, 2 * rounding_limit(t)));
  }
}

void test_grouped(DType t, DType out, std::vector<int32_t> rows_of, int64_t n, int64_t k, int mode, bool accumulate) {
  if (!wants("grouped_matmul")) return;
  std::vector<int32_t> offsets = {0};
  for (int32_t r : rows_of) offsets.push_back(offsets.back() + r);
  int64_t experts = static_cast<int64_t>(rows_of.size()), rows = offsets.back();
  const char* names[] = {"NT", "NN", "TN"};
  Case c("grouped_matmul", t,
         fmt::format("E {} R {} n {} k {} {} to {}{}", experts, rows, n, k, names[mode], base::dtype_name(out),
                     accumulate ? " add" : ""));
  int offset = c.integers({experts + 1}, offsets), a, b, y;
  if (mode == 2) {  // c[e] (k, n) = a[rows]^T b[rows]
    a = c.random({rows, k}, t), b = c.random({rows, n}, t);
    y = accumulate ? c.random({experts, k, n}, out) : c.output({experts, k, n}, out);
  } else {
    a = c.random({rows, k}, t), b = c.random(mode == 0 ? Shape{experts, n, k} : Shape{experts, k, n}, t);
    y = accumulate ? c.random({rows, n}, out) : c.output({rows, n}, out);
  }
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.group_offsets = at(offset);
    args.transpose_a = mode == 2, args.transpose_b = mode == 0, args.accumulate = accumulate;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", std::max(2e-5, rounding_limit(out)));
}

// Sizes that kernels with tiles of 128 rows take: edges in every direction, more tiles than multiprocessors.
void test_tiled_products(DType t) {
  auto shapes = [](std::vector<Product> all) {
    if (test_options().small) all.resize(2);
    return all;
  };
  for (const Product& p : shapes({{128, 8, 8}, {333, 264, 136}, {1031, 72, 72}, {2309, 1544, 776}})) {
    test_activation_product(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
  }
  for (const Product& p :
       shapes({{128, 64, 8}, {333, 264, 136}, {1031, 192, 72}, {129, 320, 776}, {2309, 1536, 200}})) {
    test_gated_product(t, p, spec::Activation::silu, "silu");
  }
  for (const Product& p : shapes({{4096, 8, 8}, {5003, 264, 136}})) test_product(t, t, p, false, true, false, true);
  test_rotated_product(t, 4096, 8, 64, 1, 1);
  test_rotated_product(t, 4099, 72, 64, 3, 5);
  test_rotated_product(t, 4113, 40, 128, 2, 3);
  if (!test_options().small) test_rotated_product(t, 9001, 776, 64, 10, 12);
}

}  // namespace

void test_matmul() {
  std::vector<Product> products = {{16, 16, 16},     {37, 53, 29},    {1, 768, 768},
                                   {128, 2304, 768}, {130, 70, 1000}, {33, 50257, 64}};
  if (test_options().small) products.resize(2);
  for (DType t : kFormats) {
    for (const Product& p : products) {
      for (bool transpose_a : {false, true}) {
        for (bool transpose_b : {false, true}) {
          test_product(t, t, p, transpose_a, transpose_b, false, false);
          test_product(t, DType::f32, p, transpose_a, transpose_b, true, false);
        }
      }
      for (bool accumulate : {true, false}) test_sums(t, p, accumulate);
      test_rotated_product(t, p.m, p.k, 16, 2, 3);
      test_activation_product(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
      test_activation_product(t, p, spec::Activation::silu, "silu");
      test_gated_product(t, p, spec::Activation::silu, "silu");
      test_gated_product(t, p, spec::Activation::gelu_tanh, "gelu_tanh");
      test_product(t, t, p, false, true, false, true);
      test_product(t, t, p, false, true, true, false);
    }
    for (const Product& p : {Product{37, 53, 29}, Product{64, 64, 192}}) {
      for (bool addend : {false, true}) {
        test_batch(t, p, 3, false, true, addend);
        test_batch(t, p, 3, true, false, addend);
        test_batch(t, p, 3, false, false, addend);
      }
    }
    if (t != DType::f32) test_tiled_products(t);
    for (int mode = 0; mode < 3; ++mode) {
      for (DType out : {t, DType::f32}) {
        test_grouped(t, out, {3, 0, 20, 1}, 40, 64, mode, false);
        test_grouped(t, out, {5, 7, 0}, 33, 29, mode, true);
        if (!test_options().small) {
          test_grouped(t, out, {130, 0, 257, 1, 128, 64, 300, 5}, 200, 264, mode, out == DType::f32);
          std::vector<int32_t> many(70);  // more groups than a warp has threads, the first and the last without rows
          for (int32_t i = 0; i < 70; ++i) many[i] = i % 3 == 0 ? 0 : i * 37 % 150;
          test_grouped(t, out, many, 136, 72, mode, false);
          test_grouped(t, out, {900, 0, 1301, 77}, 520, 264, mode, mode == 2);
        }
        if (t == DType::f32) break;
      }
    }
  }
}

}  // namespace sinter::kernels::cuda_test
