// Ranges of columns between tensors.
#include <cstring>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/formats.h"

namespace sinter::kernels::cpu {
namespace {

template <class X, class Y>
void copy_rows(const CopyColumnsArgs& args) {
  const int64_t from = args.x.size(-1), to = args.y.size(-1);
  const float *factors = args.factors.data<float>(), *divisors = args.divisors.data<float>();
  for_each_row(args.x.rows(), args.columns, [&](int64_t r) {
    const X* x = args.x.data<X>() + r * from + args.x_first;
    Y* y = args.y.data<Y>() + r * to + args.y_first;
    if constexpr (std::is_same_v<X, Y>) {
      if (!factors && !divisors && !args.accumulate) {
        std::memmove(y, x, static_cast<size_t>(args.columns) * sizeof(X));
        return;
      }
    }
    for (int64_t j = 0; j < args.columns; ++j) {
      float value = static_cast<float>(x[j]);
      if (factors) value *= factors[j];
      if (divisors) value /= divisors[j];
      y[j] = static_cast<Y>(args.accumulate ? static_cast<float>(y[j]) + value : value);
    }
  });
}

}  // namespace

void copy_columns(Stream&, const CopyColumnsArgs& args) {
  with_format(args.x.dtype(), "copy_columns", [&]<class X>(X) {
    with_format(args.y.dtype(), "copy_columns", [&]<class Y>(Y) { copy_rows<X, Y>(args); });
  });
}

}  // namespace sinter::kernels::cpu
