#include "kernels/weight_rows.h"

#include "base/blocks.h"
#include "base/error.h"

namespace sinter::kernels {

void read_weight_row(const core::WeightView& weight, int64_t expert, int64_t row, float* y) {
  const core::WeightBlocks& blocks = *weight.blocks;
  const int64_t K = blocks.columns;
  for (const core::WeightPart& part : blocks.parts) {
    if (row >= part.rows) {
      row -= part.rows;
      continue;
    }
    row += expert * part.rows;
    if (part.format == base::WeightFormat::plain) {
      const auto bytes = static_cast<int64_t>(base::dtype_bytes(part.data.dtype()));
      base::convert_elements(part.data.dtype(), part.data.data<char>() + row * K * bytes, base::DType::f32, y,
                             static_cast<size_t>(K));
    } else {
      const auto* source = part.data.data<uint8_t>() + row * base::bytes_of(part.format, K);
      if (!part.scales) {
        base::dequantize_blocks(part.format, source, nullptr, y, K);
      } else {
        const int64_t groups = part.scales.size(-1);
        const base::RowScales scales{.scales = part.scales.data<float>() + row * groups,
                                     .zeros = part.zeros ? part.zeros.data<float>() + row * groups : nullptr,
                                     .permutation = part.permutation ? part.permutation.data<int32_t>() : nullptr,
                                     .group = part.group > 0 ? part.group : base::info_of(part.format).block_elements};
        base::dequantize_row(part.format, source, scales, y, K);
      }
    }
    if (part.global_scale != 1.0f) {
      for (int64_t i = 0; i < K; ++i) y[i] *= part.global_scale;
    }
    return;
  }
  base::fail("[dequantize] a row past the weight's {}", blocks.rows);
}

}  // namespace sinter::kernels
