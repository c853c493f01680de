// Arguments of the kernels that fill, cast, add and sum.
#pragma once
#include "kernels/args/common.h"

namespace sinter::kernels {

struct FillArgs {  // every element becomes value
  Tensor y;
  float value = 0;
};
struct AxpbyArgs {  // y = alpha x + beta y
  Tensor x, y;      // (n) any floating formats
  float alpha = 1, beta = 0;
};

struct ColumnSumArgs {  // y[n] = sum over rows; ADDS when accumulate: the gradient of a bias
  Tensor x;             // (R, N) compute format
  Tensor y;             // (N) f32
  bool accumulate = true;
};

}  // namespace sinter::kernels
