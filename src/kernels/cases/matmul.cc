// Cases: matrix products, plain, in batches and over groups of rows.
#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

struct Product {
  int64_t m, n, k;
  Size size;
};
std::string text_of(const Product& p) { return fmt::format("{}x{}x{}", p.m, p.n, p.k); }
const char* transposes(bool a, bool b) { return a ? (b ? "TT" : "TN") : (b ? "NT" : "NN"); }

struct Mode {
  DType out;
  bool transpose_a, transpose_b, accumulate, bias;
};

void product(Case& c, DType t, const Product& p, const Mode& mode) {
  const int a = c.random(mode.transpose_a ? Shape{p.k, p.m} : Shape{p.m, p.k}, t),
            b = c.random(mode.transpose_b ? Shape{p.n, p.k} : Shape{p.k, p.n}, t),
            y = mode.accumulate ? c.random({p.m, p.n}, mode.out) : c.output({p.m, p.n}, mode.out),
            vector = mode.bias ? c.random({p.n}, mode.out) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.bias = at(vector);
    args.transpose_a = mode.transpose_a, args.transpose_b = mode.transpose_b, args.accumulate = mode.accumulate;
    args.alpha = mode.bias ? 1.0f : 0.5f;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", Result::product);
}

void add_product(DType t, const Product& p, const Mode& mode) {
  add("Matmul", t,
      fmt::format("{}_{}_to_{}{}{}", text_of(p), transposes(mode.transpose_a, mode.transpose_b),
                  base::dtype_name(mode.out), mode.accumulate ? "_added" : "", mode.bias ? "_bias" : ""),
      p.size, [=](Case& c) { product(c, t, p, mode); });
}

constexpr Product kProducts[] = {{16, 16, 16, Size::small},     {37, 53, 29, Size::small},
                                 {1, 768, 768, Size::medium},   {128, 2304, 768, Size::large},
                                 {130, 70, 1000, Size::medium}, {33, 50257, 64, Size::large},
                                 {4096, 8, 8, Size::small},     {5003, 264, 136, Size::large}};
// Edges of the CPU's panels and blocks.
constexpr Product kEdges[] = {{1, 1, 1, Size::medium},      {1, 50, 33, Size::medium},  {3, 17, 5, Size::medium},
                              {8, 48, 64, Size::medium},    {33, 65, 31, Size::medium}, {37, 97, 70, Size::medium},
                              {64, 1, 129, Size::medium},   {1, 129, 64, Size::medium}, {130, 100, 257, Size::medium},
                              {70, 300, 150, Size::medium}, {48, 70, 832, Size::medium}};

void register_products() {
  for (DType t : kFormats) {
    for (const Product& p : kProducts) {
      const bool is_tall = p.m > 4000;  // what kernels with tiles of 128 rows take
      if (is_tall && t != DType::f32) add_product(t, p, {t, false, true, false, true});
      if (is_tall) continue;
      for (bool transpose_a : {false, true}) {
        for (bool transpose_b : {false, true}) {
          add_product(t, p, {t, transpose_a, transpose_b, false, false});
          add_product(t, p, {DType::f32, transpose_a, transpose_b, true, false});
        }
      }
      add_product(t, p, {t, false, true, false, true});
      // In f32 that is what stands above already.
      if (t != DType::f32) add_product(t, p, {t, false, true, true, false});
    }
    for (const Product& p : kEdges) {
      for (bool transpose_a : {false, true}) {
        for (bool transpose_b : {false, true}) {
          add_product(t, p, {t, transpose_a, transpose_b, false, false});
          if (t != DType::f32) add_product(t, p, {DType::f32, transpose_a, transpose_b, false, false});
        }
      }
    }
  }
}

// Products of one shape in one call, with an addend: Muon's iterations.
struct Batch {
  Product p;
  DType out;
  bool transpose_a, transpose_b, addend;
};

void batch(Case& c, DType t, const Batch& b) {
  const int64_t num = 3;
  const Product& p = b.p;
  const int x = c.random(b.transpose_a ? Shape{num * p.k, p.m} : Shape{num * p.m, p.k}, t),
            w = c.random(b.transpose_b ? Shape{num * p.n, p.k} : Shape{num * p.k, p.n}, t),
            y = c.output({num * p.m, p.n}, b.out), add = b.addend ? c.random({num * p.m, p.n}, b.out) : -1;
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(x), args.b.data = at(w), args.c = at(y), args.addend = at(add);
    args.transpose_a = b.transpose_a, args.transpose_b = b.transpose_b;
    args.alpha = 0.5f, args.beta = -1.5f, args.batch = num;
    table.matmul(s, args);
  });
  // Where c is in 16 bits the CPU rounds the addend's share once more.
  c.expect_close(y, "c", b.addend && b.out != DType::f32 ? Result::rounded : Result::product);
}

void register_batches() {
  for (DType t : kFormats) {
    for (const Product& p :
         {Product{37, 53, 29, Size::small}, Product{64, 64, 192, Size::small}, Product{9, 20, 33, Size::medium}}) {
      for (bool addend : {false, true}) {
        for (auto [transpose_a, transpose_b] : {std::pair{false, true}, {true, false}, {false, false}, {true, true}}) {
          for (DType out : {t, DType::f32}) {
            const bool is_old = out == t && !(transpose_a && transpose_b);
            const Batch b{{p.m, p.n, p.k, is_old ? p.size : Size::medium}, out, transpose_a, transpose_b, addend};
            add("MatmulBatch", t,
                fmt::format("3_of_{}_{}_to_{}{}", text_of(p), transposes(transpose_a, transpose_b),
                            base::dtype_name(out), addend ? "_addend" : ""),
                b.p.size, [=](Case& c) { batch(c, t, b); });
            if (t == DType::f32) break;
          }
        }
      }
    }
  }
}

enum class Grouped { forward, backward, weight };  // NT, NN, TN

struct Groups {
  std::vector<int32_t> rows_of;
  int64_t n, k;
  Grouped mode;
  DType out;
  bool accumulate;
};

void grouped(Case& c, DType t, const Groups& g) {
  std::vector<int32_t> offsets = {0};
  for (int32_t r : g.rows_of) offsets.push_back(offsets.back() + r);
  const int64_t experts = static_cast<int64_t>(g.rows_of.size()), rows = offsets.back(), n = g.n, k = g.k;
  const int offset = c.integers({experts + 1}, offsets);
  int a = -1, b = -1;
  Shape shape{rows, n};
  if (g.mode == Grouped::weight) {  // c[e] (k, n) = a[rows]^T b[rows]
    a = c.random({rows, k}, t), b = c.random({rows, n}, t);
    shape = {experts, k, n};
  } else {
    a = c.random({rows, k}, t);
    b = c.random(g.mode == Grouped::forward ? Shape{experts, n, k} : Shape{experts, k, n}, t);
  }
  const int y = g.accumulate ? c.random(shape, g.out) : c.output(shape, g.out);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.group_offsets = at(offset);
    args.transpose_a = g.mode == Grouped::weight, args.transpose_b = g.mode == Grouped::forward;
    args.accumulate = g.accumulate;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", Result::product);
}

void add_groups(DType t, const std::string& name, const Groups& g, Size size) {
  const char* modes[] = {"NT", "NN", "TN"};
  add("GroupedMatmul", t,
      fmt::format("{}_{}x{}_{}_to_{}{}", name, g.n, g.k, modes[static_cast<int>(g.mode)], base::dtype_name(g.out),
                  g.accumulate ? "_added" : ""),
      size, [=](Case& c) { grouped(c, t, g); });
}

void register_groups() {
  std::vector<int32_t> many(70);  // more groups than a warp has threads, the first and the last without rows
  for (int32_t i = 0; i < 70; ++i) many[static_cast<size_t>(i)] = i % 3 == 0 ? 0 : i * 37 % 150;
  for (DType t : kFormats) {
    for (Grouped mode : {Grouped::forward, Grouped::backward, Grouped::weight}) {
      for (DType out : {t, DType::f32}) {
        add_groups(t, "4_experts", {{3, 0, 20, 1}, 40, 64, mode, out, false}, Size::small);
        add_groups(t, "3_experts", {{5, 7, 0}, 33, 29, mode, out, true}, Size::small);
        for (bool accumulate : {false, true})
          add_groups(t, "8_experts_two_empty", {{3, 0, 37, 1, 49, 0, 1, 6}, 51, 37, mode, out, accumulate},
                     Size::medium);
        add_groups(t, "8_experts", {{130, 0, 257, 1, 128, 64, 300, 5}, 200, 264, mode, out, out == DType::f32},
                   Size::large);
        add_groups(t, "70_experts", {many, 136, 72, mode, out, false}, Size::large);
        add_groups(t, "4_large_experts", {{900, 0, 1301, 77}, 520, 264, mode, out, mode == Grouped::weight},
                   Size::large);
        if (t == DType::f32) break;
      }
    }
  }
}

}  // namespace

void register_matmul_cases() {
  register_products();
  register_batches();
  register_groups();
}

}  // namespace sinter::kernels::cases
