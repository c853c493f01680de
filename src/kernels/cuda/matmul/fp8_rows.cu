// Rows rounded to fp8, and their products with weights in fp8 (fp8_rows.h).
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/batch_invariance.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/matmul/fp8_rows.h"
#include "kernels/cuda/serving_options.h"

namespace sinter::kernels::cuda {
namespace {

constexpr int kThreads = 256, kLanesOfGroup = kFp8Group / 8;
constexpr float kLargest = 448.0f;

// A scale whose codes reach the largest of e4m3; not 0.
__device__ __forceinline__ float scale_of(float largest) { return largest > 0 ? largest / kLargest : 1.0f; }

__device__ __forceinline__ float largest_of(const float (&x)[8]) {
  float largest = 0;
#pragma unroll
  for (float v : x) largest = fmaxf(largest, fabsf(v));
  return largest;
}

__device__ __forceinline__ uint2 round_eight(const float (&x)[8], float inverse) {
  uint32_t words[2] = {};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = {x[2 * i] * inverse, x[2 * i + 1] * inverse};
    const uint32_t codes = __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);
    words[i / 2] |= codes << i % 2 * 16;
  }
  return {words[0], words[1]};
}

// A block a row, 8 columns a thread at a time: a group's columns are half a warp's.
template <class T, bool kHasGroups>
__global__ void __launch_bounds__(kThreads)
    round_rows_kernel(const T* x, int64_t rows, int64_t columns, uint8_t* codes, float* scales) {
  __shared__ float shared[kThreads / 32];
  let_next_begin();
  wait_for_previous();
  const int64_t row = blockIdx.x;
  const T* from = x + row * columns;
  uint8_t* to = codes + row * columns;
  float inverse = 0;
  if constexpr (!kHasGroups) {
    float largest = 0;
    for (int64_t c = threadIdx.x * 8; c < columns; c += kThreads * 8) {
      float v[8];
      load_floats<T, 8>(from + c, v);
      largest = fmaxf(largest, largest_of(v));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = largest;
    __syncthreads();
    largest = warp_max(threadIdx.x % 32 < kThreads / 32 ? shared[threadIdx.x % 32] : 0.0f);
    const float scale = scale_of(largest);
    inverse = 1.0f / scale;
    if (threadIdx.x == 0) scales[row] = scale;
  }
  // All lanes of a warp go through the loop as often: groups meet in shuffles.
  for (int64_t first = 0; first < columns; first += kThreads * 8) {
    const int64_t c = first + threadIdx.x * 8;
    const bool is_there = c < columns;
    float v[8] = {};
    if (is_there) load_floats<T, 8>(from + c, v);
    if constexpr (kHasGroups) {
      float largest = largest_of(v);
#pragma unroll
      for (int step = kLanesOfGroup / 2; step > 0; step >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      const float scale = scale_of(largest);
      inverse = 1.0f / scale;
      if (is_there && threadIdx.x % kLanesOfGroup == 0) scales[c / kFp8Group * rows + row] = scale;
    }
    if (is_there) *reinterpret_cast<uint2*>(to + c) = round_eight(v, inverse);
  }
}

// (rows, groups) becomes (groups, rows).
__global__ void __launch_bounds__(kThreads)
    turn_scales_kernel(const float* from, float* to, int64_t rows, int64_t groups) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i < rows * groups) to[i] = from[i % rows * groups + i / rows];
}

template <class T>
void round_rows(Stream& stream, const Tensor& x, bool has_groups, void* codes, float* scales) {
  const int64_t rows = x.rows(), columns = x.size(-1);
  auto run = [&](auto kernel) {
    launch_overlapping(stream, may_overlap(rows), kernel, dim3(static_cast<unsigned>(rows)), kThreads, 0, x.data<T>(),
                       rows, columns, static_cast<uint8_t*>(codes), scales);
  };
  has_groups ? run(round_rows_kernel<T, true>) : run(round_rows_kernel<T, false>);
}

bool has_groups_of(const core::WeightPart& part, int64_t columns) { return part.group != columns; }

}  // namespace

bool takes_fp8_rows(const Stream& stream, const MatmulArgs& args) {
  const int64_t least_rows = serving_options().fp8_rows;  // below, our own products read the codes (small_product.h)
  if (least_rows == 0 || args.b.is_plain() || is_batch_invariant()) return false;
  const base::DType t = args.a.dtype();
  if (t != base::DType::bf16 && t != base::DType::f16) return false;
  if (args.c.dtype() != t && args.c.dtype() != base::DType::f32) return false;
  if (!args.transpose_b || args.transpose_a || args.accumulate || args.batch != 1) return false;
  if (args.group_offsets || args.c_columns != 0 || args.c_squares) return false;
  const core::WeightBlocks& blocks = *args.b.blocks;
  if (blocks.experts != 1 || args.a.rows() < least_rows || compute_capability(stream.device) != 90) return false;
  if (!is_aligned(args.a.raw()) || !is_aligned(args.c.raw()) || args.c.size(-1) % 8 != 0) return false;
  for (const core::WeightPart& part : blocks.parts) {
    if (part.format != base::WeightFormat::fp8_e4m3 || part.permutation || part.zeros || !part.scales) return false;
    if (part.rows % 16 != 0 || blocks.columns % 16 != 0 || !is_aligned(part.data.raw())) return false;
    if (part.group != blocks.parts[0].group) return false;
    if (has_groups_of(part, blocks.columns) && (part.group != kFp8Group || blocks.columns % kFp8Group != 0))
      return false;
  }
  return args.b.blocks->columns == args.a.size(-1);
}

bool fp8_rows_matmul(Stream& stream, const MatmulArgs& args) {
  const core::WeightBlocks& blocks = *args.b.blocks;
  const int64_t m = args.a.rows(), k = blocks.columns, stride = args.c.size(-1);
  const bool has_groups = has_groups_of(blocks.parts[0], k);
  const int64_t groups = has_groups ? k / kFp8Group : 1;
  int64_t most_rows = 0;
  for (const core::WeightPart& part : blocks.parts) most_rows = std::max(most_rows, part.rows);
  auto rounded = [](int64_t bytes) { return static_cast<size_t>((bytes + 255) / 256 * 256); };
  const size_t code_bytes = rounded(m * k), scale_bytes = rounded(m * groups * 4);
  char* codes = static_cast<char*>(
      scratch(stream, Scratch::tokens, code_bytes + scale_bytes + rounded(has_groups ? most_rows * groups * 4 : 0)));
  auto* scales = reinterpret_cast<float*>(codes + code_bytes);
  auto* turned = reinterpret_cast<float*>(codes + code_bytes + scale_bytes);
  args.a.dtype() == base::DType::bf16 ? round_rows<bfloat16>(stream, args.a, has_groups, codes, scales)
                                      : round_rows<half>(stream, args.a, has_groups, codes, scales);
  auto column_of = [](const Tensor& t, int64_t column) {
    return t ? t.data<char>() + static_cast<size_t>(column) * base::dtype_bytes(t.dtype()) : nullptr;
  };
  int64_t first = 0;
  for (const core::WeightPart& part : blocks.parts) {
    const float* part_scales = part.scales.data<float>();
    if (has_groups) {
      turn_scales_kernel<<<static_cast<unsigned>(div_up(part.rows * groups, kThreads)), kThreads, 0, native(stream)>>>(
          part_scales, turned, part.rows, groups);
      SINTER_CUDA_LAUNCHED();
      part_scales = turned;
    }
    const ScaledProduct product{.m = m,
                                .n = part.rows,
                                .k = k,
                                .has_groups = has_groups,
                                .a = codes,
                                .b = part.data.raw(),
                                .a_scales = scales,
                                .b_scales = part_scales,
                                .bias = column_of(args.bias, first),
                                .addend = column_of(args.addend, first),
                                .d = column_of(args.c, first),
                                .d_stride = stride,
                                .out = args.c.dtype(),
                                .alpha = args.alpha * part.global_scale,
                                .beta = args.addend ? args.beta : 0.0f};
    if (!scaled_product(stream, product)) return false;
    first += part.rows;
  }
  return true;
}

}  // namespace sinter::kernels::cuda
