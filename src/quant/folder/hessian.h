// What a layer's inputs say of which errors of its weights matter: H = sum of x x^T over a calibration text, and its
// inverse as a triangle, which rounding column after column needs.
#pragma once
#include <cstdint>
#include <vector>

#include "core/tensor.h"

namespace sinter::quant {

// (K, K) f32 on the CPU.
class Hessian {
 public:
  explicit Hessian(int64_t columns);
  // Adds the rows (T, K) f32.
  void add(const core::Tensor& rows);
  int64_t columns() const { return columns_; }
  int64_t num_rows() const { return num_rows_; }
  const core::Tensor& matrix() const { return matrix_; }
  const float* row(int64_t i) const { return matrix_.data<float>() + i * columns_; }
  std::vector<float> diagonal() const;
  // H of inputs divided by `scale` (K): what remains when the weight's columns are multiplied by it.
  Hessian divided_by(const std::vector<float>& scale) const;

 private:
  int64_t columns_, num_rows_ = 0;
  core::Tensor matrix_;
};

// The upper triangle U (K, K) with (P H P^T + damping)^-1 = U^T U, where row i of P H P^T is row order[i] of H. The
// damping is `damp` times the mean of the diagonal, and grows until the matrix has a root. Columns that no input ever
// reached count as unrelated to the others.
core::Tensor inverse_root(const Hessian& hessian, const std::vector<int32_t>& order, double damp);

}  // namespace sinter::quant
