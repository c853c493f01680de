#include <cmath>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"

namespace sinter::kernels::reference {

void copy_columns(Stream&, const CopyColumnsArgs& args) {
  FloatView x(args.x), y(args.y), factors(args.factors), divisors(args.divisors);
  const int64_t from = args.x.size(-1), to = args.y.size(-1);
  for_each_index(args.x.rows(), [&](int64_t r) {
    for (int64_t j = 0; j < args.columns; ++j) {
      double value = x[r * from + args.x_first + j];
      if (factors) value *= factors[j];
      if (divisors) value /= divisors[j];
      const int64_t place = r * to + args.y_first + j;
      y.set(place, args.accumulate ? y[place] + value : value);
    }
  });
}

void column_dot(Stream&, const ColumnDotArgs& args) {
  FloatView a(args.a), b(args.b), y(args.y), divisors(args.divisors);
  const int64_t rows = args.a.rows(), a_width = args.a.size(-1), b_width = args.b.size(-1);
  for_each_index(args.y.num_elements(), [&](int64_t j) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += a[r * a_width + args.a_first + j] * b[r * b_width + args.b_first + j];
    if (divisors) sum /= divisors[j];
    y.set(j, args.accumulate ? y[j] + sum : sum);
  });
}

void row_norm(Stream&, const RowNormArgs& args) {
  FloatView x(args.x), y(args.y);
  const int64_t columns = args.x.size(-1);
  for_each_index(args.x.rows(), [&](int64_t r) {
    double sum = 0;
    for (int64_t c = 0; c < columns; ++c) sum += x[r * columns + c] * x[r * columns + c];
    y.set(r, std::sqrt(sum));
  });
}

}  // namespace sinter::kernels::reference
