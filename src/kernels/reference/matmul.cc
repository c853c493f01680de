#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {
namespace {

// One product on plain arrays: c (M, N) = alpha * a b (+ bias) (+ c), both factors already untransposed.
struct Product {
  std::vector<float> a;  // (M, K)
  std::vector<float> b;  // (K, N)
  int64_t m, n, k;

  void write(const FloatView& c, int64_t c_first, int64_t c_stride, const FloatView& bias, float alpha, bool accumulate,
             const FloatView& addend = FloatView(Tensor()), float beta = 0) const {
    for_each_index(m, [&](int64_t i) {
      std::vector<double> sum(static_cast<size_t>(n));
      for (int64_t j = 0; j < k; ++j) {
        double factor = a[i * k + j];
        const float* row = &b[j * n];
        for (int64_t x = 0; x < n; ++x) sum[x] += factor * row[x];
      }
      for (int64_t x = 0; x < n; ++x) {
        double value = alpha * sum[x] + (bias ? bias[x] : 0.0);
        int64_t at = c_first + i * c_stride + x;
        if (addend) value += beta * addend[at];
        c.set(at, accumulate ? c[at] + value : value);
      }
    });
  }
};

// A (rows, columns) block starting at element `first`, transposed when asked.
std::vector<float> read_block(const FloatView& x, int64_t first, int64_t rows, int64_t columns, bool transpose) {
  std::vector<float> block(static_cast<size_t>(rows * columns));
  for_each_index(rows, [&](int64_t r) {
    for (int64_t c = 0; c < columns; ++c) {
      block[transpose ? c * rows + r : r * columns + c] = static_cast<float>(x[first + r * columns + c]);
    }
  });
  return block;
}

// The weight's numbers in f32, then the plain product.
void multiply_quantized(Stream& stream, const MatmulArgs& args) {
  const int64_t E = args.b.experts(), N = args.b.rows(), K = args.b.columns();
  std::vector<float> values(static_cast<size_t>(E * N * K));
  const Tensor all = Tensor::view_of(values.data(), {E * N, K}, base::DType::f32, args.c.device());
  for (int64_t e = 0; e < E; ++e) dequantize(stream, {.weight = args.b, .expert = e, .y = all.slice(e * N, N)});
  MatmulArgs plain = args;
  plain.b = {.data = args.group_offsets ? all.reshape({E, N, K}) : all};
  matmul(stream, plain);
}

}  // namespace

void matmul(Stream& stream, const MatmulArgs& args) {
  if (args.batch > 1) {
    for (int64_t i = 0; i < args.batch; ++i) matmul(stream, matmul_of_batch(args, i));
    return;
  }
  if (!args.b.is_plain()) return multiply_quantized(stream, args);
  FloatView a(args.a), b(args.b.data), c(args.c), bias(args.bias);
  int64_t n = columns_of(args), c_stride = args.c.size(-1), c_first = args.c_first_column;
  float alpha = args.alpha;  // with the scales of fp8 factors
  for (const Tensor& scale : {args.a_scale, args.b_scale}) {
    if (scale) alpha *= scale.data<float>()[0];
  }
  if (!args.group_offsets) {
    int64_t m = args.c.rows(), k = m == 0 ? 0 : a.size() / m;
    Product product{read_block(a, 0, args.transpose_a ? k : m, args.transpose_a ? m : k, args.transpose_a),
                    read_block(b, 0, args.transpose_b ? n : k, args.transpose_b ? k : n, args.transpose_b), m, n, k};
    product.write(c, c_first, c_stride, bias, alpha, args.accumulate, FloatView(args.addend), args.beta);
    return;
  }
  const int32_t* offsets = args.group_offsets.data<int32_t>();
  int64_t experts = args.group_offsets.num_elements() - 1;
  for (int64_t e = 0; e < experts; ++e) {
    int64_t first = offsets[e], rows = offsets[e + 1] - offsets[e];
    if (args.transpose_a) {  // c[e] (M, N) = a[rows]^T b[rows]
      int64_t m = args.a.size(-1);
      Product product{read_block(a, first * m, rows, m, true), read_block(b, first * n, rows, n, false), m, n, rows};
      product.write(c, e * m * n, n, bias, args.alpha, args.accumulate);
    } else {  // c[rows] = a[rows] b[e]
      int64_t k = args.a.size(-1);
      Product product{read_block(a, first * k, rows, k, false),
                      read_block(b, e * n * k, args.transpose_b ? n : k, args.transpose_b ? k : n, args.transpose_b),
                      rows, n, k};
      product.write(c, first * c_stride + c_first, c_stride, bias, args.alpha, args.accumulate);
    }
  }
}

}  // namespace sinter::kernels::reference
