// Weights in blocks as plain numbers: a thread decodes one block.
#include <cuda_fp8.h>

#include "base/block_decode.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {
namespace {

struct RowRange {
  const uint8_t* blocks;  // of the part's first row
  const int32_t* rows;    // (count) rows of the whole weight, or null: those from `first` on
  int64_t first, count;   // rows of y
  int64_t part_first, part_rows;
  int64_t row_blocks, columns;
  float factor;
};

template <base::WeightFormat kFormat, class T>
__global__ void dequantize_kernel(RowRange range, int block_elements, int block_bytes, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= range.count * range.row_blocks) return;
  const int64_t at = i / range.row_blocks, b = i % range.row_blocks;
  const int64_t row = (range.rows ? range.rows[at] : range.first + at) - range.part_first;
  if (row < 0 || row >= range.part_rows) return;
  T* out = y + at * range.columns + b * block_elements;
  const float factor = range.factor;
  base::block::decode<kFormat>(range.blocks + (row * range.row_blocks + b) * block_bytes,
                               [=](int j, float value) { out[j] = from_float<T>(value * factor); });
}

// Rows that are plain numbers, of another format perhaps, a thread a number.
template <class X, class T>
__global__ void dequantize_plain_kernel(RowRange range, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= range.count * range.columns) return;
  const int64_t at = i / range.columns, c = i % range.columns;
  const int64_t row = (range.rows ? range.rows[at] : range.first + at) - range.part_first;
  if (row < 0 || row >= range.part_rows) return;
  const float value = to_float(reinterpret_cast<const X*>(range.blocks)[row * range.columns + c]);
  y[at * range.columns + c] = from_float<T>(value * range.factor);
}

// Codes whose scales stand apart, a thread a number: (code - zero) * scale of its group.
struct GroupScales {
  const float *scales, *zeros;
  const int32_t* permutation;
  int64_t groups, group;
};
template <base::WeightFormat kFormat, class T>
__global__ void dequantize_groups_kernel(RowRange range, GroupScales by, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= range.count * range.columns) return;
  const int64_t at = i / range.columns, c = i % range.columns;
  const int64_t row = (range.rows ? range.rows[at] : range.first + at) - range.part_first;
  if (row < 0 || row >= range.part_rows) return;
  const int64_t g = row * by.groups + (by.permutation ? by.permutation[c] : c / by.group);
  float code = 0, zero = 0;
  if constexpr (kFormat == base::WeightFormat::fp8_e4m3) {
    code = float(reinterpret_cast<const __nv_fp8_e4m3*>(range.blocks)[row * range.columns + c]);
  } else if constexpr (kFormat == base::WeightFormat::int8) {
    code = range.blocks[row * range.columns + c], zero = by.zeros ? by.zeros[g] : 128.0f;
  } else if constexpr (kFormat == base::WeightFormat::int4) {
    const uint8_t pair = range.blocks[(row * range.columns + c) / 2];
    code = c % 2 == 0 ? pair & 15 : pair >> 4, zero = by.zeros ? by.zeros[g] : 8.0f;
  } else {
    const uint8_t pair = range.blocks[(row * range.columns + c) / 2];
    const int own = c % 2 == 0 ? pair >> 4 : pair & 15;
    code = kFormat == base::WeightFormat::nf4 ? base::block::nf4_value(own) : base::block::fp4_value(own);
  }
  y[at * range.columns + c] = from_float<T>((code - zero) * by.scales[g] * range.factor);
}

// False: a format whose scales do not stand apart so.
template <class T>
bool dequantize_groups(Stream& stream, const core::WeightPart& part, const RowRange& range, int64_t expert, T* y) {
  using enum base::WeightFormat;
  if (base::info_of(part.format).scales != base::WeightScales::apart) return false;
  const int64_t groups = part.scales.size(-1), first = expert * part.rows * groups;
  const GroupScales by{part.scales.data<float>() + first, part.zeros ? part.zeros.data<float>() + first : nullptr,
                       part.permutation ? part.permutation.data<int32_t>() : nullptr, groups,
                       part.group > 0 ? part.group : base::info_of(part.format).block_elements};
  constexpr int kThreads = 256;
  const auto grid = static_cast<unsigned>(div_up(range.count * range.columns, int64_t{kThreads}));
  const auto kernel = part.format == fp8_e4m3 ? dequantize_groups_kernel<fp8_e4m3, T>
                      : part.format == int8   ? dequantize_groups_kernel<int8, T>
                      : part.format == int4   ? dequantize_groups_kernel<int4, T>
                      : part.format == nf4    ? dequantize_groups_kernel<nf4, T>
                                              : dequantize_groups_kernel<fp4, T>;
  kernel<<<grid, kThreads, 0, native(stream)>>>(range, by, y);
  return true;
}

template <class T>
void dequantize_plain(Stream& stream, const core::WeightPart& part, const RowRange& range, T* y) {
  constexpr int kThreads = 256;
  const auto grid = static_cast<unsigned>(div_up(range.count * range.columns, int64_t{kThreads}));
  dispatch_format(part.data.dtype(), "dequantize", [&]<class X>(TypeTag<X>) {
    dequantize_plain_kernel<X, T><<<grid, kThreads, 0, native(stream)>>>(range, y);
  });
}

}  // namespace

void dequantize(Stream& stream, const DequantizeArgs& args) {
  const core::WeightBlocks& weight = *args.weight.blocks;
  const int64_t count = args.y.rows();
  if (count == 0) return;
  int64_t part_first = 0;
  for (const core::WeightPart& part : weight.parts) {
    const base::WeightFormatInfo& info = base::info_of(part.format);
    const int64_t row_blocks = weight.columns / info.block_elements;
    const bool is_plain = part.format == base::WeightFormat::plain;
    const int64_t row_bytes = is_plain ? weight.columns * static_cast<int64_t>(base::dtype_bytes(part.data.dtype()))
                                       : base::bytes_of(part.format, weight.columns);
    const auto* blocks = part.data.data<uint8_t>() + args.expert * part.rows * row_bytes;
    const RowRange range{blocks,           args.rows ? args.rows.data<int32_t>() : nullptr,
                         args.first_row,   count,
                         part_first,       part.rows,
                         row_blocks,       weight.columns,
                         part.global_scale};
    constexpr int kThreads = 128;
    const auto grid = static_cast<unsigned>(div_up(count * row_blocks, int64_t{kThreads}));
    bool is_known = is_plain;
    dispatch_format(args.y.dtype(), "dequantize", [&]<class T>(TypeTag<T>) {
      if (is_plain) return dequantize_plain<T>(stream, part, range, args.y.data<T>());
      is_known = dequantize_groups<T>(stream, part, range, args.expert, args.y.data<T>());
      if (is_known) return;
      is_known = base::block::visit_format(part.format, [&]<base::WeightFormat kFormat>() {
        dequantize_kernel<kFormat, T>
            <<<grid, kThreads, 0, native(stream)>>>(range, info.block_elements, info.block_bytes, args.y.data<T>());
      });
    });
    SINTER_CHECK(is_known, "[dequantize] no CUDA kernel for weights in {}", info.name);
    SINTER_CUDA_LAUNCHED();
    part_first += part.rows;
  }
}

}  // namespace sinter::kernels::cuda
