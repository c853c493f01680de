// Cases: rounding into fp8, the gated activation in fp8, scales and products. The plain loops are the CPU's, so these
// run where a device has kernels of its own.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/cases/case.h"

namespace sinter::kernels::cases {
namespace {

const char* name_of(DType format) { return format == DType::f8e5m2 ? "e5m2" : "e4m3"; }

std::vector<float> scaling_row(float scale, DType format) {
  std::vector<float> row(Fp8Scaling::kSize, 0.0f);
  row[Fp8Scaling::kScale] = scale;
  row[Fp8Scaling::kInverse] = 1 / scale;
  row[Fp8Scaling::kLimit] = format == DType::f8e5m2 ? base::f8e5m2::kLargest : base::f8e4m3::kLargest;
  return row;
}

// A scale at which some numbers saturate and some are subnormal.
void quantize(Case& c, DType t, Shape shape, DType format) {
  const int x = c.random(shape, t),
            scaling = c.floats({Fp8Scaling::kSize}, scaling_row(format == DType::f8e5m2 ? 0.5f : 128.0f, format)),
            values = c.output(shape, format), transposed = c.output({shape[1], shape[0]}, format),
            only = c.output({shape[1], shape[0]}, format);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.fp8_quantize(s, {at(x), {at(scaling), at(values), at(transposed)}});
    table.fp8_quantize(s, {at(x), {at(scaling), {}, at(only)}});
    table.fp8_quantize(s, {at(x), {.scaling = at(scaling)}});
  });
  c.expect_equal(values, "values");
  c.expect_equal(transposed, "transposed");
  c.expect_equal(only, "only");
  c.expect_equal(scaling, "largest");
}

void special_numbers(Case& c, DType format, bool has_nan) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> numbers(256, 1.0f);
  const float special[] = {0.0f,     -0.0f,    inf,     -inf,     1e30f,      -1e30f,   448.0f,   464.0f,     480.0f,
                           57344.0f, 61440.0f, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1p-16f, 0x1p-17f, 0x1.8p-17f, 1e-40f};
  std::copy(std::begin(special), std::end(special), numbers.begin() + 3);
  if (has_nan) numbers[200] = nan;
  const int x = c.floats({16, 16}, numbers), scaling = c.floats({Fp8Scaling::kSize}, scaling_row(1.0f, format)),
            values = c.output({16, 16}, format), transposed = c.output({16, 16}, format);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.fp8_quantize(s, {at(x), {at(scaling), at(values), at(transposed)}});
  });
  c.expect_equal(values, "values");
  c.expect_equal(transposed, "transposed");
  c.expect_equal(scaling, "largest");
}

void swiglu_forward(Case& c, DType t, int64_t rows, int64_t width) {
  const int x = c.random({rows, 2 * width}, t, 2.0f),
            scaling = c.floats({Fp8Scaling::kSize}, scaling_row(16.0f, DType::f8e4m3)),
            values = c.output({rows, width}, DType::f8e4m3), transposed = c.output({width, rows}, DType::f8e4m3),
            largest = c.output({1}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.fp8_swiglu_forward(s, {at(x), {at(scaling), at(values), at(transposed)}});
    table.axpby(s, {.x = at(scaling).slice(Fp8Scaling::kLargest, 1), .y = at(largest)});
  });
  c.expect_close(values, "values", Result::fp8, DType::f32);
  c.expect_close(transposed, "transposed", Result::fp8, DType::f32);
  c.expect_close(largest, "largest", Result::statistic);
}

void swiglu_backward(Case& c, DType t, int64_t rows, int64_t width) {
  const int dy = c.random({rows, width}, t, 1e-3f), x = c.random({rows, 2 * width}, t, 2.0f),
            scaling = c.floats({Fp8Scaling::kSize}, scaling_row(0x1p18f, DType::f8e5m2)),
            values = c.output({rows, 2 * width}, DType::f8e5m2),
            transposed = c.output({2 * width, rows}, DType::f8e5m2), largest = c.output({1}, DType::f32);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    table.fp8_swiglu_backward(s, {at(dy), at(x), {at(scaling), at(values), at(transposed)}});
    table.axpby(s, {.x = at(scaling).slice(Fp8Scaling::kLargest, 1), .y = at(largest)});
  });
  c.expect_close(values, "dx", Result::fp8_gradient, DType::f32);
  c.expect_close(transposed, "transposed", Result::fp8_gradient, DType::f32);
  c.expect_close(largest, "largest", Result::statistic);
}

void rescale(Case& c) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  std::vector<float> rows;
  for (float largest : {0.0f, 1.0f, 448.0f, 449.0f, 3.0f, nan, inf, 1e-42f, 1e38f, 0.3f}) {
    for (float past : {0.0f, 2.5f}) {
      std::vector<float> row = scaling_row(4.0f, past > 0 ? DType::f8e5m2 : DType::f8e4m3);
      row[Fp8Scaling::kLargest] = largest;
      for (int64_t i = 0; i < Fp8Scaling::kHistorySteps; ++i)
        row[static_cast<size_t>(Fp8Scaling::kHistory + i)] = past * static_cast<float>(i);
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  const auto count = static_cast<int64_t>(rows.size()) / Fp8Scaling::kSize;
  const int scalings = c.floats({count, Fp8Scaling::kSize}, rows);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) { table.fp8_rescale(s, {at(scalings)}); });
  c.expect_equal(scalings, "scalings");
}

struct Product {
  int64_t m, n, k;
  DType out;
  bool bias, accumulate, fast;
  Size size;
};

void product(Case& c, DType a_format, const Product& p) {
  if (!core::runtime(target().device).has_fp8_products()) GTEST_SKIP() << "no fp8 products on this GPU";
  const int a = c.random({p.m, p.k}, a_format, 4.0f), b = c.random({p.n, p.k}, DType::f8e4m3, 4.0f),
            a_scale = c.floats({4}, {0.125f, 7, 7, 7}), b_scale = c.floats({4}, {0.5f, 7, 7, 7}),
            vector = p.bias ? c.random({p.n}, p.out) : Case::none(),
            y = p.accumulate ? c.random({p.m, p.n}, p.out) : c.output({p.m, p.n}, p.out);
  c.run([&](const KernelTable& table, Stream& s, const Case::At& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.transpose_b = true, args.bias = at(vector);
    args.a_scale = at(a_scale), args.b_scale = at(b_scale), args.accumulate = p.accumulate;
    args.fast_accumulation = p.fast;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", p.fast ? Result::fast_fp8_product : Result::fp8_product);
}

void register_products() {
  constexpr Product kProducts[] = {{16, 16, 16, DType::bf16, false, false, false, Size::small},
                                   {48, 80, 112, DType::bf16, true, false, true, Size::small},
                                   {48, 80, 112, DType::f32, false, true, false, Size::small},
                                   {512, 768, 2048, DType::bf16, false, false, true, Size::large},
                                   {512, 768, 2048, DType::f32, false, true, false, Size::large},
                                   {512, 768, 8192, DType::f32, false, false, true, Size::large},
                                   {256, 256, 1024, DType::f16, false, false, false, Size::large}};
  for (DType a_format : {DType::f8e4m3, DType::f8e5m2}) {
    for (const Product& p : kProducts) {
      add("Fp8Matmul", p.out,
          fmt::format("{}x{}x{}_{}{}{}{}", p.m, p.n, p.k, name_of(a_format), p.bias ? "_bias" : "",
                      p.accumulate ? "_added" : "", p.fast ? "_fast" : ""),
          p.size, [=](Case& c) { product(c, a_format, p); });
    }
  }
}

}  // namespace

void register_fp8_cases() {
  if (!has_own<&KernelTable::fp8_quantize>()) return;
  for (DType t : kFormats) {
    for (DType format : {DType::f8e4m3, DType::f8e5m2}) {
      for (Shape shape : {Shape{16, 16}, Shape{144, 272}, Shape{128, 2048}, Shape{2064, 1600}}) {
        add("Fp8Quantize", t, fmt::format("{}x{}_{}", shape[0], shape[1], name_of(format)),
            shape[0] == 16 ? Size::small : Size::medium, [=](Case& c) { quantize(c, t, shape, format); });
      }
    }
    for (Shape shape : {Shape{16, 16}, Shape{144, 272}, Shape{1040, 1536}}) {
      const std::string text = fmt::format("{}x{}", shape[0], shape[1]);
      const Size size = shape[0] > 1000 ? Size::large : Size::small;
      add("Fp8SwigluForward", t, text, size, [=](Case& c) { swiglu_forward(c, t, shape[0], shape[1]); });
      add("Fp8SwigluBackward", t, text, size, [=](Case& c) { swiglu_backward(c, t, shape[0], shape[1]); });
    }
  }
  for (bool has_nan : {false, true}) {
    for (DType format : {DType::f8e4m3, DType::f8e5m2}) {
      add("Fp8Quantize", DType::f32, fmt::format("special_numbers{}_{}", has_nan ? "_and_nan" : "", name_of(format)),
          Size::small, [=](Case& c) { special_numbers(c, format, has_nan); });
    }
  }
  add("Fp8Rescale", DType::f32, "20_rows", Size::small, rescale);
  register_products();
}

}  // namespace sinter::kernels::cases
