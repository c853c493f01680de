// Weights in blocks as plain numbers.
#include <cuda_fp8.h>

#include <algorithm>

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

// Which row of the part stands at a row of y; -1: another part's.
__device__ __forceinline__ int64_t row_of(const RowRange& range, int64_t at) {
  const int64_t row = (range.rows ? range.rows[at] : range.first + at) - range.part_first;
  return row < range.part_rows ? row : -1;
}

// A warp decodes 32 blocks, a thread one each, to shared memory: from there they go to y, where they lie behind each
// other, in whole sectors.
constexpr int kWarp = 32, kPad = 2;
template <base::WeightFormat kFormat, class T>
__global__ void __launch_bounds__(kWarp) dequantize_kernel(RowRange range, int block_elements, int block_bytes, T* y) {
  extern __shared__ __align__(16) unsigned char shared[];
  __shared__ bool is_own[kWarp];
  T* decoded = reinterpret_cast<T*>(shared);
  const int lane = static_cast<int>(threadIdx.x), stride = block_elements + kPad;
  const int64_t first = int64_t{blockIdx.x} * kWarp, i = first + lane;
  int64_t row = -1;
  if (i < range.count * range.row_blocks) {
    const int64_t at = i / range.row_blocks;
    row = row_of(range, at);
    if (row >= 0) {
      T* own = decoded + lane * stride;
      const float factor = range.factor;
      base::block::decode<kFormat>(range.blocks + (row * range.row_blocks + (i - at * range.row_blocks)) * block_bytes,
                                   [=](int j, float value) { own[j] = from_float<T>(value * factor); });
    }
  }
  is_own[lane] = row >= 0;
  __syncthreads();
  T* out = y + first * block_elements;
  for (int e = lane * 2; e < kWarp * block_elements; e += kWarp * 2) {
    const int block = e / block_elements, from = block * stride + e - block * block_elements;
    if (!is_own[block]) continue;
    out[e] = decoded[from];
    out[e + 1] = decoded[from + 1];
  }
}

// Rows that are plain numbers, of another format perhaps, a thread a number.
template <class X, class T>
__global__ void dequantize_plain_kernel(RowRange range, T* y) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= range.count * range.columns) return;
  const int64_t at = i / range.columns, c = i % range.columns;
  const int64_t row = row_of(range, at);
  if (row < 0) return;
  const float value = to_float(reinterpret_cast<const X*>(range.blocks)[row * range.columns + c]);
  y[at * range.columns + c] = from_float<T>(value * range.factor);
}

// Codes whose scales stand apart: (code - zero) * scale of its group.
struct GroupScales {
  const float *scales, *zeros;
  const int32_t* permutation;
  int groups, group;
  bool is_whole;  // rows of codes and of y are multiples of eight, in places that eight at once need
};
constexpr int kAtOnce = 8;  // columns of a thread; a group's are a multiple

template <base::WeightFormat kFormat>
constexpr int code_bits = kFormat == base::WeightFormat::fp8_e4m3 || kFormat == base::WeightFormat::int8 ? 8 : 4;

// The number behind code `i` of eight that lie behind each other, before its zero. `table`: of nf4 and fp4.
template <base::WeightFormat kFormat>
__device__ __forceinline__ float code_at(const uint32_t (&codes)[2], int i, const float* table) {
  if constexpr (code_bits<kFormat> == 8) {
    const uint32_t byte = codes[i / 4] >> i % 4 * 8 & 255;
    if constexpr (kFormat == base::WeightFormat::int8) return static_cast<float>(byte);
    __nv_fp8_e4m3 value;
    value.__x = static_cast<__nv_fp8_storage_t>(byte);
    return float(value);
  } else if constexpr (kFormat == base::WeightFormat::int4) {
    return static_cast<float>(codes[0] >> i * 4 & 15);
  } else {  // bitsandbytes begins with the high half of a byte
    return table[codes[0] >> (i ^ 1) * 4 & 15];
  }
}

// A block a row of y, threads eight columns each.
template <base::WeightFormat kFormat, class T>
__global__ void __launch_bounds__(256) dequantize_groups_kernel(RowRange range, GroupScales by, T* y) {
  constexpr bool kHasTable = kFormat == base::WeightFormat::nf4 || kFormat == base::WeightFormat::fp4;
  constexpr float kMiddle = kHasTable || kFormat == base::WeightFormat::fp8_e4m3 ? 0.0f
                            : kFormat == base::WeightFormat::int8                ? 128.0f
                                                                                 : 8.0f;
  __shared__ float table[16];
  const int64_t at = blockIdx.x, row = row_of(range, at);
  if (row < 0) return;
  if constexpr (kHasTable) {
    if (threadIdx.x < 16)
      table[threadIdx.x] = kFormat == base::WeightFormat::nf4 ? base::block::nf4_value(threadIdx.x)
                                                              : base::block::fp4_value(threadIdx.x);
    __syncthreads();
  }
  const int columns = static_cast<int>(range.columns);
  const uint8_t* codes = range.blocks + row * columns * code_bits<kFormat> / 8;
  const float *scales = by.scales + row * by.groups, *zeros = by.zeros ? by.zeros + row * by.groups : nullptr;
  for (int c = static_cast<int>(threadIdx.x) * kAtOnce; c < columns; c += static_cast<int>(blockDim.x) * kAtOnce) {
    const int many = min(kAtOnce, columns - c), bytes = many * code_bits<kFormat> / 8;
    uint32_t own[2] = {};
    if (by.is_whole) {
      const auto* words = reinterpret_cast<const uint32_t*>(codes + c * code_bits<kFormat> / 8);
      own[0] = words[0];
      if constexpr (code_bits<kFormat> == 8) own[1] = words[1];
    } else {
      for (int b = 0; b < bytes; ++b) own[b / 4] |= uint32_t{codes[c * code_bits<kFormat> / 8 + b]} << b % 4 * 8;
    }
    float values[kAtOnce];
    const int group = c / by.group;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int g = by.permutation ? by.permutation[min(c + i, columns - 1)] : group;
      const float zero = zeros ? zeros[g] : kMiddle;
      values[i] = (code_at<kFormat>(own, i, table) - zero) * scales[g] * range.factor;
    }
    T* out = y + at * columns + c;
    if (by.is_whole) {
      store_floats<T, kAtOnce>(out, values);
    } else {
      for (int i = 0; i < many; ++i) out[i] = from_float<T>(values[i]);
    }
  }
}

// False: a format whose scales do not stand apart so.
template <class T>
bool dequantize_groups(Stream& stream, const core::WeightPart& part, const RowRange& range, int64_t expert, T* y) {
  using enum base::WeightFormat;
  if (base::info_of(part.format).scales != base::WeightScales::apart) return false;
  const int64_t groups = part.scales.size(-1), first = expert * part.rows * groups;
  const auto group = static_cast<int>(part.group > 0 ? part.group : base::info_of(part.format).block_elements);
  SINTER_CHECK(group % kAtOnce == 0 || group >= range.columns || part.permutation,
               "[dequantize] groups of {} columns in {}: not on CUDA; a multiple of {} is", group,
               base::info_of(part.format).name, kAtOnce);
  const GroupScales by{part.scales.data<float>() + first,
                       part.zeros ? part.zeros.data<float>() + first : nullptr,
                       part.permutation ? part.permutation.data<int32_t>() : nullptr,
                       static_cast<int>(groups),
                       group,
                       range.columns % kAtOnce == 0 && is_aligned(y, kAtOnce * sizeof(T)) && is_aligned(range.blocks)};
  const auto kernel = part.format == fp8_e4m3 ? dequantize_groups_kernel<fp8_e4m3, T>
                      : part.format == int8   ? dequantize_groups_kernel<int8, T>
                      : part.format == int4   ? dequantize_groups_kernel<int4, T>
                      : part.format == nf4    ? dequantize_groups_kernel<nf4, T>
                                              : dequantize_groups_kernel<fp4, T>;
  const auto threads = static_cast<unsigned>(std::clamp<int64_t>(div_up(range.columns, kAtOnce * 32) * 32, 32, 256));
  kernel<<<static_cast<unsigned>(range.count), threads, 0, native(stream)>>>(range, by, y);
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
    const auto grid = static_cast<unsigned>(div_up(count * row_blocks, int64_t{kWarp}));
    bool is_known = is_plain;
    dispatch_format(args.y.dtype(), "dequantize", [&]<class T>(TypeTag<T>) {
      if (is_plain) return dequantize_plain<T>(stream, part, range, args.y.data<T>());
      is_known = dequantize_groups<T>(stream, part, range, args.expert, args.y.data<T>());
      if (is_known) return;
      is_known = base::block::visit_format(part.format, [&]<base::WeightFormat kFormat>() {
        const size_t shared = sizeof(T) * kWarp * static_cast<size_t>(info.block_elements + kPad);
        dequantize_kernel<kFormat, T>
            <<<grid, kWarp, shared, native(stream)>>>(range, info.block_elements, info.block_bytes, args.y.data<T>());
      });
    });
    SINTER_CHECK(is_known, "[dequantize] no CUDA kernel for weights in {}", info.name);
    SINTER_CUDA_LAUNCHED();
    part_first += part.rows;
  }
}

}  // namespace sinter::kernels::cuda
