#include "quant/folder/hessian.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/table.h"

namespace sinter::quant {
namespace {

using core::Tensor;

constexpr int64_t kBlock = 64;  // columns that are factored together

Tensor make_matrix(int64_t rows, int64_t columns) {
  Tensor t(core::runtime({}).allocator(), {rows, columns}, core::DType::f32);
  std::memset(t.raw(), 0, t.bytes());
  return t;
}

// c[:, first...] += alpha a b, with b (K, N), or (N, K) when transposed.
void add_product(const Tensor& a, const Tensor& b, bool transpose_b, float alpha, const Tensor& c, int64_t first,
                 int64_t columns) {
  kernels::MatmulArgs args;
  args.a = a;
  args.b = {.data = b};
  args.c = c;
  args.transpose_b = transpose_b;
  args.alpha = alpha;
  args.accumulate = true;
  args.c_first_column = first;
  args.c_columns = columns;
  kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
}

Tensor copy_block(const Tensor& from, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  Tensor block(core::runtime({}).allocator(), {rows, columns}, core::DType::f32);
  const int64_t stride = from.size(1);
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(block.data<float>() + r * columns, from.data<float>() + (row + r) * stride + column,
                static_cast<size_t>(columns) * sizeof(float));
  return block;
}

// The lower root of a (K, K), in place; what stands above the diagonal is not touched. False where there is none.
bool factor(const Tensor& a) {
  const int64_t K = a.size(0);
  float* x = a.data<float>();
  for (int64_t b = 0; b < K; b += kBlock) {
    const int64_t end = std::min(K, b + kBlock);
    for (int64_t j = b; j < end; ++j) {
      double pivot = static_cast<double>(x[j * K + j]);
      for (int64_t k = b; k < j; ++k) pivot -= static_cast<double>(x[j * K + k]) * static_cast<double>(x[j * K + k]);
      if (!(pivot > 0) || !std::isfinite(pivot)) return false;
      const double root = std::sqrt(pivot);
      x[j * K + j] = static_cast<float>(root);
      base::parallel_for(K - j - 1, 256, [&](int64_t first, int64_t last) {
        for (int64_t i = j + 1 + first; i < j + 1 + last; ++i) {
          double sum = static_cast<double>(x[i * K + j]);
          for (int64_t k = b; k < j; ++k) sum -= static_cast<double>(x[i * K + k]) * static_cast<double>(x[j * K + k]);
          x[i * K + j] = static_cast<float>(sum / root);
        }
      });
    }
    if (end == K) break;
    const Tensor panel = copy_block(a, end, K - end, b, end - b);  // (K - end, block)
    add_product(panel, panel, true, -1.0f, a.slice(end, K - end), end, K - end);
  }
  return true;
}

// The inverse of the lower triangle l (K, K).
Tensor invert_lower(const Tensor& l) {
  const int64_t K = l.size(0);
  Tensor inverse = make_matrix(K, K);
  const float* x = l.data<float>();
  float* y = inverse.data<float>();
  for (int64_t b = 0; b < K; b += kBlock) {
    const int64_t rows = std::min(kBlock, K - b);
    for (int64_t r = 0; r < rows; ++r) y[(b + r) * K + b + r] = 1;
    if (b > 0)
      add_product(copy_block(l, b, rows, 0, b), copy_block(inverse, 0, b, 0, b), false, -1.0f, inverse.slice(b, rows),
                  0, b);
    base::parallel_for(b + rows, 64, [&](int64_t first, int64_t last) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t k = 0; k < r; ++k) {
          const float factor = x[(b + r) * K + b + k];
          for (int64_t c = first; c < last; ++c) y[(b + r) * K + c] -= factor * y[(b + k) * K + c];
        }
        const float one = 1.0f / x[(b + r) * K + b + r];
        for (int64_t c = first; c < last; ++c) y[(b + r) * K + c] *= one;
      }
    });
  }
  return inverse;
}

}  // namespace

Hessian::Hessian(int64_t columns) : columns_(columns), matrix_(make_matrix(columns, columns)) {}

void Hessian::add(const Tensor& rows) {
  if (rows.rows() == 0) return;
  const Tensor x = rows.reshape({rows.rows(), columns_});
  kernels::MatmulArgs args;
  args.a = x;
  args.b = {.data = x};
  args.c = matrix_;
  args.transpose_a = true;
  args.accumulate = true;
  kernels::kernels_for({}).matmul(core::runtime({}).stream(), args);
  num_rows_ += x.rows();
}

std::vector<float> Hessian::diagonal() const {
  std::vector<float> values(static_cast<size_t>(columns_));
  for (int64_t i = 0; i < columns_; ++i) values[static_cast<size_t>(i)] = row(i)[i];
  return values;
}

Hessian Hessian::divided_by(const std::vector<float>& scale) const {
  Hessian result(columns_);
  result.num_rows_ = num_rows_;
  float* y = result.matrix_.data<float>();
  base::parallel_for(columns_, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      for (int64_t j = 0; j < columns_; ++j)
        y[i * columns_ + j] = row(i)[j] / (scale[static_cast<size_t>(i)] * scale[static_cast<size_t>(j)]);
    }
  });
  return result;
}

Tensor inverse_root(const Hessian& hessian, const std::vector<int32_t>& order, double damp) {
  const int64_t K = hessian.columns();
  // The root of the matrix with rows and columns turned around is an upper root of the matrix itself; the inverse of
  // that is the upper root of the inverse.
  double mean = 0;
  for (float d : hessian.diagonal()) mean += static_cast<double>(d);
  mean /= static_cast<double>(K);
  if (!(mean > 0)) mean = 1;
  auto place = [&](int64_t i) { return static_cast<int64_t>(order[static_cast<size_t>(K - 1 - i)]); };
  for (double share = damp; share < 1e6; share *= 4) {
    Tensor turned = make_matrix(K, K);
    base::parallel_for(K, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* to = turned.data<float>() + i * K;
        const float* from = hessian.row(place(i));
        for (int64_t j = 0; j < K; ++j) to[j] = from[place(j)];
        to[i] = static_cast<float>((to[i] > 0 ? static_cast<double>(to[i]) : mean) + share * mean);
      }
    });
    if (!factor(turned)) continue;
    const Tensor inverse = invert_lower(turned);
    Tensor upper = make_matrix(K, K);
    base::parallel_for(K, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t j = i; j < K; ++j)
          upper.data<float>()[i * K + j] = inverse.data<float>()[(K - 1 - i) * K + (K - 1 - j)];
      }
    });
    return upper;
  }
  base::fail("the calibration text gives inputs that are not finite: no rounding can be found for them");
}

}  // namespace sinter::quant
