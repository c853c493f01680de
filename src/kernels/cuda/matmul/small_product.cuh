// What kernels of products of few rows share (small_product.cu, quantized_product.cu): the arguments, which rows of the
// weight a block owns, and what becomes of its sums.
//
// A block owns 16 columns of c, which are 16 rows of w; its 8 warps take turns along the inner size, and their sums
// meet in shared memory, in a fixed order.
#pragma once
#include "base/weight_format.h"
#include "kernels/cuda/matmul/small_product.h"
#include "kernels/cuda/mma.cuh"

namespace sinter::kernels::cuda {

constexpr int kProductWarps = 8, kProductThreads = 32 * kProductWarps, kProductRows = 16;

enum class ProductKind { plain, gated, rotated };

// Rows of w that lie together.
struct ProductPart {
  const char* rows;
  const float* scales;  // that stand apart: (rows, groups)
  float factor;         // beside the scales
  int first, groups, group_columns;
  // Of blocks and codes (quantized_product.cu):
  const char* end = nullptr;     // of all rows
  const float* zeros = nullptr;  // (rows, groups) or null
  int64_t row_bytes = 0;
  base::WeightFormat format = base::WeightFormat::plain;
};
constexpr int kMostParts = 3;

struct ProductParams {
  const void* x;
  ProductPart parts[kMostParts];
  int num_parts;
  void *c, *pre;  // pre: gated, or null
  const void *bias, *addend;
  const float* cos_sin;
  int64_t c_stride;
  int m, n, k;                // n: rows of w
  int half_dim, num_rotated;  // rotated: of heads
  spec::Activation activation;
  bool c_is_f32, is_quantized;
};

// quantized_product.cu: fills the parts of a weight in blocks or codes; false where its kernel does not read them.
bool find_quantized_parts(const Stream& stream, const core::WeightView& weight, ProductParams& p);
// Whether the 16 rows of every block have one format.
bool has_one_format_a_block(const ProductParams& p, ProductKind kind);
void quantized_product(Stream& stream, base::DType compute, const ProductParams& p, ProductKind kind);

// The rows of w behind the block's 16 columns: two runs of 8, so that what belongs together (gate and up, the halves
// of a head) meets in one block.
struct RowPair {
  int low, high;
};
template <ProductKind kKind>
__device__ __forceinline__ RowPair rows_of(const ProductParams& p, int block) {
  if constexpr (kKind == ProductKind::gated) return {block * 8, p.n / 2 + block * 8};
  if constexpr (kKind == ProductKind::rotated) {
    const int per_head = p.half_dim / 8, head = block / per_head, first = head * 2 * p.half_dim + block % per_head * 8;
    return {first, first + p.half_dim};
  }
  return {block * 16, block * 16 + 8};
}

__device__ __forceinline__ float activate(spec::Activation kind, float x) {
  switch (kind) {
    case spec::Activation::silu:
      return x / (1.0f + expf(-x));
    case spec::Activation::gelu:
      return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case spec::Activation::gelu_tanh:
      return 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    default:
      return fmaxf(x, 0.0f);
  }
}

template <class T>
__device__ __forceinline__ void put(const ProductParams& p, int64_t at, float value) {
  if (p.c_is_f32) {
    static_cast<float*>(p.c)[at] = value;
  } else {
    static_cast<T*>(p.c)[at] = from_float<T>(value);
  }
}

// The block's sums of all warps become columns of c: rows [first_row, first_row + kColumns) of a.
template <class T, int kTiles, ProductKind kKind>
__device__ __forceinline__ void write_columns(const ProductParams& p, const RowPair& rows,
                                              const float (&parts)[kProductWarps][kProductRows][kTiles * 8 + 1],
                                              int first_row) {
  auto total = [&](int r, int m) {
    float t = 0;
#pragma unroll
    for (int w = 0; w < kProductWarps; ++w) t += parts[w][r][m];
    return t;
  };
  auto bias_of = [&](int n) { return p.bias ? to_float(static_cast<const T*>(p.bias)[n]) : 0.0f; };
  if constexpr (kKind == ProductKind::plain) {
    const int n = rows.low + threadIdx.x % kProductRows, column = threadIdx.x / kProductRows, m = first_row + column;
    if (m >= p.m || column >= kTiles * 8 || n >= p.n) return;
    float value = total(threadIdx.x % kProductRows, column) + bias_of(n);
    const int64_t at = m * p.c_stride + n;
    if (p.addend) {
      value += p.c_is_f32 ? static_cast<const float*>(p.addend)[at] : to_float(static_cast<const T*>(p.addend)[at]);
    }
    put<T>(p, at, value);
    return;
  }
  const int r = threadIdx.x % 8, column = threadIdx.x / 8, m = first_row + column;
  if (m >= p.m || column >= kTiles * 8) return;
  const float low = total(r, column) + bias_of(rows.low + r), high = total(r + 8, column) + bias_of(rows.high + r);
  if constexpr (kKind == ProductKind::gated) {
    // The activation's input is as stored: rounded.
    const T gate = from_float<T>(low), up = from_float<T>(high);
    if (p.pre) {
      T* pre = static_cast<T*>(p.pre) + int64_t{m} * p.n;
      pre[rows.low + r] = gate, pre[rows.high + r] = up;
    }
    put<T>(p, m * p.c_stride + rows.low + r, activate(p.activation, to_float(gate)) * to_float(up));
  } else {
    float first = to_float(from_float<T>(low)), second = to_float(from_float<T>(high));
    const int dim = 2 * p.half_dim, place = rows.low % dim + r;
    if (rows.low / dim < p.num_rotated) {
      const float* angles = p.cos_sin + int64_t{m} * dim + place;
      const float c = angles[0], s = angles[p.half_dim], old = first;
      first = old * c - second * s;
      second = second * c + old * s;
    }
    put<T>(p, m * p.c_stride + rows.low + r, first);
    put<T>(p, m * p.c_stride + rows.high + r, second);
  }
}

// A warp's sums of one tile of 8 rows of a, where write_columns() finds them.
template <int kTiles>
__device__ __forceinline__ void keep_sums(float (&parts)[kProductWarps][kProductRows][kTiles * 8 + 1],
                                          const float (&sum)[kTiles][4]) {
  const int warp = threadIdx.x / 32, row = threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
    parts[warp][row][i * 8 + column] = sum[i][0];
    parts[warp][row][i * 8 + column + 1] = sum[i][1];
    parts[warp][row + 8][i * 8 + column] = sum[i][2];
    parts[warp][row + 8][i * 8 + column + 1] = sum[i][3];
  }
}

}  // namespace sinter::kernels::cuda
