// Rounding into fp8, the gated activation in fp8, scales and fp8 products, against the reference loops.
#include <cmath>
#include <limits>

#include "kernels/cuda/test_harness.h"

namespace sinter::kernels::cuda_test {
namespace {

std::vector<float> scaling_row(float scale, DType format) {
  std::vector<float> row(Fp8Scaling::kSize, 0.0f);
  row[Fp8Scaling::kScale] = scale;
  row[Fp8Scaling::kInverse] = 1 / scale;
  row[Fp8Scaling::kLimit] = format == DType::f8e5m2 ? base::f8e5m2::kLargest : base::f8e4m3::kLargest;
  return row;
}

std::string text_of(Shape shape, DType format) {
  return shape.to_string() + (format == DType::f8e5m2 ? " e5m2" : " e4m3");
}

// A scale at which some numbers saturate and some are subnormal.
void test_quantize(DType t, Shape shape, DType format) {
  if (!wants("fp8_quantize")) return;
  Case c("fp8_quantize", t, text_of(shape, format));
  int x = c.random(shape, t),
      scaling = c.floats({Fp8Scaling::kSize}, scaling_row(format == DType::f8e5m2 ? 0.5f : 128.0f, format));
  int values = c.output(shape, format), transposed = c.output({shape[1], shape[0]}, format);
  int only = c.output({shape[1], shape[0]}, format);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    table.fp8_quantize(s, {at(x), {at(scaling), at(values), at(transposed)}});
    table.fp8_quantize(s, {at(x), {at(scaling), {}, at(only)}});
    table.fp8_quantize(s, {at(x), {.scaling = at(scaling)}});
  });
  c.expect_equal(values, "values");
  c.expect_equal(transposed, "transposed");
  c.expect_equal(only, "only");
  c.expect_equal(scaling, "largest");
}

void test_special_numbers() {
  if (!wants("fp8_quantize")) return;
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (bool has_nan : {false, true}) {
    for (DType format : {DType::f8e4m3, DType::f8e5m2}) {
      std::vector<float> numbers(256, 1.0f);
      const float special[] = {0.0f,     -0.0f,      inf,      -inf,     1e30f,      -1e30f,
                               448.0f,   464.0f,     480.0f,   57344.0f, 61440.0f,   0x1p-9f,
                               0x1p-10f, 0x1.8p-10f, 0x1p-16f, 0x1p-17f, 0x1.8p-17f, 1e-40f};
      std::copy(std::begin(special), std::end(special), numbers.begin() + 3);
      if (has_nan) numbers[200] = nan;
      Case c("fp8_quantize", DType::f32,
             std::string("special numbers") + (has_nan ? " and nan " : " ") + text_of({}, format));
      int x = c.floats({16, 16}, numbers), scaling = c.floats({Fp8Scaling::kSize}, scaling_row(1.0f, format));
      int values = c.output({16, 16}, format), transposed = c.output({16, 16}, format);
      c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
        table.fp8_quantize(s, {at(x), {at(scaling), at(values), at(transposed)}});
      });
      c.expect_equal(values, "values");
      c.expect_equal(transposed, "transposed");
      c.expect_equal(scaling, "largest");
    }
  }
}

void test_swiglu(DType t, int64_t rows, int64_t width) {
  if (wants("fp8_swiglu_forward")) {
    Case c("fp8_swiglu_forward", t, Shape{rows, width}.to_string());
    int x = c.random({rows, 2 * width}, t, 2.0f);
    int scaling = c.floats({Fp8Scaling::kSize}, scaling_row(16.0f, DType::f8e4m3));
    int values = c.output({rows, width}, DType::f8e4m3), transposed = c.output({width, rows}, DType::f8e4m3);
    int largest = c.output({1}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.fp8_swiglu_forward(s, {at(x), {at(scaling), at(values), at(transposed)}});
      table.axpby(s, {.x = at(scaling).slice(Fp8Scaling::kLargest, 1), .y = at(largest)});
    });
    c.expect_close(values, "values", 5e-3);
    c.expect_close(transposed, "transposed", 5e-3);
    c.expect_close(largest, "largest", 1e-5);
  }
  if (wants("fp8_swiglu_backward")) {
    Case c("fp8_swiglu_backward", t, Shape{rows, width}.to_string());
    int dy = c.random({rows, width}, t, 1e-3f), x = c.random({rows, 2 * width}, t, 2.0f);
    int scaling = c.floats({Fp8Scaling::kSize}, scaling_row(0x1p18f, DType::f8e5m2));
    int values = c.output({rows, 2 * width}, DType::f8e5m2), transposed = c.output({2 * width, rows}, DType::f8e5m2);
    int largest = c.output({1}, DType::f32);
    c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
      table.fp8_swiglu_backward(s, {at(dy), at(x), {at(scaling), at(values), at(transposed)}});
      table.axpby(s, {.x = at(scaling).slice(Fp8Scaling::kLargest, 1), .y = at(largest)});
    });
    c.expect_close(values, "dx", 1e-2);
    c.expect_close(transposed, "transposed", 1e-2);
    c.expect_close(largest, "largest", 1e-5);
  }
}

void test_rescale() {
  if (!wants("fp8_rescale")) return;
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
  auto count = static_cast<int64_t>(rows.size()) / Fp8Scaling::kSize;
  Case c("fp8_rescale", DType::f32, std::to_string(count) + " rows");
  int scalings = c.floats({count, Fp8Scaling::kSize}, rows);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) { table.fp8_rescale(s, {at(scalings)}); });
  c.expect_equal(scalings, "scalings");
}

void test_product(int64_t m, int64_t n, int64_t k, DType a_format, DType out, bool bias, bool accumulate, bool fast) {
  if (!wants("fp8_matmul")) return;
  Case c("fp8_matmul", out,
         fmt::format("({}, {}, {}) {}{}{}{}", m, n, k, a_format == DType::f8e5m2 ? "e5m2" : "e4m3", bias ? " bias" : "",
                     accumulate ? " add" : "", fast ? " fast" : ""));
  int a = c.random({m, k}, a_format, 4.0f), b = c.random({n, k}, DType::f8e4m3, 4.0f);
  int a_scale = c.floats({4}, {0.125f, 7, 7, 7}), b_scale = c.floats({4}, {0.5f, 7, 7, 7});
  int vector = bias ? c.random({n}, out) : Case::none();
  int y = accumulate ? c.random({m, n}, out) : c.output({m, n}, out);
  c.run([&](const KernelTable& table, Stream& s, const Case::Select& at) {
    MatmulArgs args;
    args.a = at(a), args.b.data = at(b), args.c = at(y), args.transpose_b = true, args.bias = at(vector);
    args.a_scale = at(a_scale), args.b_scale = at(b_scale), args.accumulate = accumulate, args.fast_accumulation = fast;
    table.matmul(s, args);
  });
  c.expect_close(y, "c", out == DType::f32 ? (fast ? 3e-3 : 1e-3) : 5e-3);
}

}  // namespace

void test_fp8() {
  bool small = test_options().small;
  for (DType t : kFormats) {
    for (DType format : {DType::f8e4m3, DType::f8e5m2}) {
      for (Shape shape : {Shape{16, 16}, Shape{144, 272}, Shape{128, 2048}, Shape{2064, 1600}}) {
        test_quantize(t, shape, format);
        if (small) break;
      }
    }
    test_swiglu(t, 16, 16);
    test_swiglu(t, 144, 272);
    if (!small) test_swiglu(t, 1040, 1536);
  }
  test_special_numbers();
  test_rescale();
  if (!core::runtime({core::DeviceKind::cuda, 0}).has_fp8_products()) {
    std::printf("no fp8 products on this GPU: not tested\n");
    return;
  }
  for (DType a_format : {DType::f8e4m3, DType::f8e5m2}) {
    test_product(16, 16, 16, a_format, DType::bf16, false, false, false);
    test_product(48, 80, 112, a_format, DType::bf16, true, false, true);
    test_product(48, 80, 112, a_format, DType::f32, false, true, false);
    if (small) continue;
    test_product(512, 768, 2048, a_format, DType::bf16, false, false, true);
    test_product(512, 768, 2048, a_format, DType::f32, false, true, false);
    test_product(512, 768, 8192, a_format, DType::f32, false, false, true);
    test_product(256, 256, 1024, a_format, DType::f16, false, false, false);
  }
}

}  // namespace sinter::kernels::cuda_test
