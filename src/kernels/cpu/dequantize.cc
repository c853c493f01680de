#include <vector>

#include "base/error.h"
#include "base/threads.h"
#include "kernels/cpu/cpu.h"
#include "kernels/weight_rows.h"

namespace sinter::kernels::cpu {

void dequantize(Stream&, const DequantizeArgs& args) {
  const int64_t K = args.weight.columns(), R = args.y.rows();
  const auto row_bytes = K * static_cast<int64_t>(base::dtype_bytes(args.y.dtype()));
  base::parallel_for(R, 16, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = args.rows ? args.rows.data<int32_t>()[i] : args.first_row + i;
      SINTER_CHECK(row >= 0 && row < args.weight.rows(), "[dequantize] row {} of {}", row, args.weight.rows());
      char* y = args.y.data<char>() + i * row_bytes;
      if (args.y.dtype() == base::DType::f32) {
        read_weight_row(args.weight, args.expert, row, reinterpret_cast<float*>(y));
        continue;
      }
      values.resize(static_cast<size_t>(K));
      read_weight_row(args.weight, args.expert, row, values.data());
      base::convert_elements(base::DType::f32, values.data(), args.y.dtype(), y, values.size());
    }
  });
}

}  // namespace sinter::kernels::cpu
