// A weight as whole numbers with scales and zero points, rounded so that a layer's outputs change least (GPTQ).
#pragma once
#include <cstdint>
#include <vector>

#include "quant/folder/hessian.h"

namespace sinter::quant {

struct IntegerForm {
  int bits = 4;
  int64_t group = 128;         // columns with one scale; <= 0: all of them
  bool symmetric = true;       // zero points are the middle
  bool orders_groups = false;  // act-order: groups are made of columns of like importance
  bool searches = true;        // for the range of each group with the least error; else all of it
};

// number = scales[group of its column] * (code - zero point)
struct IntegerWeight {
  int64_t rows = 0, columns = 0, num_groups = 0;
  std::vector<uint8_t> codes;     // (rows, columns)
  std::vector<float> scales;      // (rows, groups): numbers that f16 holds
  std::vector<uint8_t> zeros;     // (rows, groups); 1 or more
  std::vector<int32_t> group_of;  // (columns)

  float number(int64_t row, int64_t column) const {
    const size_t g = static_cast<size_t>(row * num_groups + group_of[static_cast<size_t>(column)]);
    return scales[g] * static_cast<float>(codes[static_cast<size_t>(row * columns + column)] - zeros[g]);
  }
};

// The inputs of a weight as its rounding needs them. Refers to the matrix it was made of.
struct RoundingInputs {
  // `damp`: what is added to the diagonal, as a share of its mean.
  RoundingInputs(const Hessian& inputs, double damp);
  const Hessian& hessian;
  std::vector<int32_t> order;  // columns as they are rounded: those with the largest inputs first
  core::Tensor root;           // inverse_root(hessian, order, damp)
  std::vector<float> damping;  // (columns); those that no input ever reached get the mean besides
};

// Adds to the weight w what makes up best for results that are off: drift (H + damping)^-1, with drift (rows, columns)
// the sum of (result wanted - result) x^T over the inputs x.
void make_up(std::vector<float>& w, const RoundingInputs& inputs, const core::Tensor& drift);

// The weight w (rows, columns) in codes that make up for each other's errors, then refined (refine.h): of each row the
// better of two beginnings, scales with the least error under H's diagonal and scales of the whole range. Throws
// base::Error for a weight that is not finite or whose scales f16 cannot hold.
IntegerWeight round_weight(const std::vector<float>& w, int64_t rows, const RoundingInputs& inputs,
                           const IntegerForm& form);
// Nearest codes of the same scales, without making up: fast, for searches.
IntegerWeight round_nearest(const std::vector<float>& w, int64_t rows, const Hessian& hessian, const IntegerForm& form);

}  // namespace sinter::quant
