#include <vector>

#include "kernels/reference/float_view.h"
#include "kernels/reference/reference.h"
#include "kernels/weight_rows.h"

namespace sinter::kernels::reference {

void dequantize(Stream&, const DequantizeArgs& args) {
  const int64_t K = args.weight.columns();
  const FloatView y(args.y);
  for_each_index(args.y.rows(), [&](int64_t i) {
    const int64_t row = args.rows ? args.rows.data<int32_t>()[i] : args.first_row + i;
    SINTER_CHECK(row >= 0 && row < args.weight.rows(), "[dequantize] row {} of {}", row, args.weight.rows());
    std::vector<float> values(static_cast<size_t>(K));
    read_weight_row(args.weight, args.expert, row, values.data());
    for (int64_t k = 0; k < K; ++k) y.set(i * K + k, values[static_cast<size_t>(k)]);
  });
}

}  // namespace sinter::kernels::reference
