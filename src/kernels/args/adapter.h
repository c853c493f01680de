// Arguments of the kernels that low-rank adapters need: ranges of columns, norms of rows.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

// y[r, y_first + j] = x[r, x_first + j] * factors[j] / divisors[j] for j < columns [ADDS when accumulate].
struct CopyColumnsArgs {
  Tensor x;  // (R, W) any floating format
  Tensor y;  // (R, V) any floating format; may be x where the ranges are the same
  int64_t x_first = 0, y_first = 0, columns = 0;
  Tensor factors;   // (columns) f32, or empty: 1
  Tensor divisors;  // (columns) f32, or empty: 1
  bool accumulate = false;
};

// y[j] = sum over r of a[r, a_first + j] b[r, b_first + j] / divisors[j] [ADDS when accumulate].
struct ColumnDotArgs {
  Tensor a, b;  // (R, W), (R, V) any floating formats
  int64_t a_first = 0, b_first = 0;
  Tensor y;         // (N) f32
  Tensor divisors;  // (N) f32, or empty: 1
  bool accumulate = false;
};

struct RowNormArgs {  // y[r] = the square root of the sum of the squares of row r
  Tensor x;           // (R, C) any floating format
  Tensor y;           // (R) f32
};

}  // namespace sinter::kernels
