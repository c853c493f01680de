// Rounding into fp8: one pass reads a matrix once and writes it in both orders, finding its largest magnitude on the
// way. The gated MLP's activation and its gradient do the same with what they compute, so that neither is ever written
// in 16 bits. Only the maximum is shared between blocks, through integer atomics: results do not depend on their order.
#include <cuda_fp8.h>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

// A block takes a tile of kTile x kTile elements; each of its threads a square of kSide x kSide.
constexpr int kTile = 128, kSide = 8, kSquares = kTile / kSide, kThreads = kSquares * kSquares;

// What a kernel makes fp8 numbers of: load() fetches what 8 neighbours of a row depend on, compute() turns that into
// kOutputs groups of 8 numbers; group o goes to the columns [o * columns, (o + 1) * columns) of the result.
template <class T>
struct PlainSource {
  static constexpr int kOutputs = 1, kRowsAtOnce = kSide;
  using Raw = Vector<T, kSide>;
  const T* x;
  int64_t columns;
  __device__ Raw load(int64_t row, int64_t column) const {
    return *reinterpret_cast<const Raw*>(x + row * columns + column);
  }
  __device__ static void compute(const Raw& raw, float (&out)[kOutputs][kSide]) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) out[0][j] = to_float(raw.v[j]);
  }
};

template <class T>
struct SwigluSource {
  static constexpr int kOutputs = 1, kRowsAtOnce = 4;
  struct Raw {
    Vector<T, kSide> gate, up;
  };
  const T* x;
  int64_t columns;
  __device__ Raw load(int64_t row, int64_t column) const {
    const T* gate = x + row * 2 * columns + column;
    return {*reinterpret_cast<const Vector<T, kSide>*>(gate),
            *reinterpret_cast<const Vector<T, kSide>*>(gate + columns)};
  }
  __device__ static void compute(const Raw& raw, float (&out)[kOutputs][kSide]) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      float gate = to_float(raw.gate.v[j]);
      out[0][j] = gate * fast_sigmoid(gate) * to_float(raw.up.v[j]);
    }
  }
};

template <class T>
struct SwigluGradientSource {
  static constexpr int kOutputs = 2, kRowsAtOnce = 4;
  struct Raw {
    Vector<T, kSide> gate, up, dy;
  };
  const T *x, *dy;
  int64_t columns;
  __device__ Raw load(int64_t row, int64_t column) const {
    const T* gate = x + row * 2 * columns + column;
    return {*reinterpret_cast<const Vector<T, kSide>*>(gate),
            *reinterpret_cast<const Vector<T, kSide>*>(gate + columns),
            *reinterpret_cast<const Vector<T, kSide>*>(dy + row * columns + column)};
  }
  __device__ static void compute(const Raw& raw, float (&out)[kOutputs][kSide]) {
#pragma unroll
    for (int j = 0; j < kSide; ++j) {
      float gate = to_float(raw.gate.v[j]), d = to_float(raw.dy.v[j]), s = fast_sigmoid(gate);
      out[0][j] = d * to_float(raw.up.v[j]) * s * (1.0f + gate * (1.0f - s));
      out[1][j] = d * gate * s;
    }
  }
};

// Eight numbers of a row as bytes, the first lowest.
template <__nv_fp8_interpretation_t kFormat>
__device__ __forceinline__ uint2 round_row(const float (&x)[kSide], float scale) {
  uint32_t pair[kSide / 2];
#pragma unroll
  for (int j = 0; j < kSide / 2; ++j) {
    pair[j] = __nv_cvt_float2_to_fp8x2(make_float2(x[2 * j] * scale, x[2 * j + 1] * scale), __NV_SATFINITE, kFormat);
  }
  return make_uint2(pair[0] | pair[1] << 16, pair[2] | pair[3] << 16);
}

// Rows a, b, c, d of four bytes each become the four columns.
__device__ __forceinline__ void transpose_bytes(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d) {
  uint32_t ab_low = __byte_perm(a, b, 0x5140), ab_high = __byte_perm(a, b, 0x7362);
  uint32_t cd_low = __byte_perm(c, d, 0x5140), cd_high = __byte_perm(c, d, 0x7362);
  a = __byte_perm(ab_low, cd_low, 0x5410);
  b = __byte_perm(ab_low, cd_low, 0x7632);
  c = __byte_perm(ab_high, cd_high, 0x5410);
  d = __byte_perm(ab_high, cd_high, 0x7632);
}

// Eight rows of eight bytes become the eight columns.
__device__ __forceinline__ void transpose_square(uint2 (&square)[kSide]) {
#pragma unroll
  for (int i = 0; i < kSide; i += 4) {
    transpose_bytes(square[i].x, square[i + 1].x, square[i + 2].x, square[i + 3].x);
    transpose_bytes(square[i].y, square[i + 1].y, square[i + 2].y, square[i + 3].y);
  }
  // Now square[i].x holds rows 0-3 of column i (i < 4), square[i + 4].x rows 4-7 of it; .y the same of column i + 4.
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    uint32_t swapped = square[i].y;
    square[i].y = square[i + 4].x;
    square[i + 4].x = swapped;
  }
}

// Grid: tiles of columns, tiles of rows. `values` and `transposed` may be null.
template <class Source, __nv_fp8_interpretation_t kFormat>
__global__ void __launch_bounds__(kThreads)
    fp8_kernel(Source source, int64_t rows, float* scaling, uint8_t* values, uint8_t* transposed) {
  // A column of the tile is a line of 128 bytes in 16 chunks of 8 rows. Chunk q of column c lies at place q ^ (c / 8):
  // writers (neighbouring squares, one column each) and readers (the chunks of a column) both meet all banks.
  __shared__ uint2 tile[Source::kOutputs][kTile][kSquares];
  __shared__ uint32_t warp_largest[kThreads / 32];
  const int column_square = threadIdx.x % kSquares, row_square = threadIdx.x / kSquares;
  const int64_t columns = source.columns, width = columns * Source::kOutputs;
  const int64_t first_row = int64_t{blockIdx.y} * kTile + row_square * kSide;
  const int64_t first_column = int64_t{blockIdx.x} * kTile + column_square * kSide;
  const float scale = scaling[Fp8Scaling::kScale];
  uint2 square[Source::kOutputs][kSide];
  uint32_t largest = 0;
  if (first_row < rows && first_column < columns) {  // sizes are multiples of kSide: a square is in or out as a whole
#pragma unroll
    for (int begin = 0; begin < kSide; begin += Source::kRowsAtOnce) {
      typename Source::Raw raw[Source::kRowsAtOnce];  // all loads before the first use
#pragma unroll
      for (int i = 0; i < Source::kRowsAtOnce; ++i) raw[i] = source.load(first_row + begin + i, first_column);
#pragma unroll
      for (int i = 0; i < Source::kRowsAtOnce; ++i) {
        float x[Source::kOutputs][kSide];
        Source::compute(raw[i], x);
#pragma unroll
        for (int o = 0; o < Source::kOutputs; ++o) {
#pragma unroll
          for (int j = 0; j < kSide; ++j) largest = max(largest, __float_as_uint(x[o][j]) & 0x7fffffffu);
          square[o][begin + i] = round_row<kFormat>(x[o], scale);
          if (values) {
            int64_t at = (first_row + begin + i) * width + o * columns + first_column;
            *reinterpret_cast<uint2*>(values + at) = square[o][begin + i];
          }
        }
      }
    }
    if (transposed) {
#pragma unroll
      for (int o = 0; o < Source::kOutputs; ++o) {
        transpose_square(square[o]);
#pragma unroll
        for (int j = 0; j < kSide; ++j) {
          tile[o][column_square * kSide + j][row_square ^ column_square] = square[o][j];
        }
      }
    }
  }
  largest = __reduce_max_sync(0xffffffffu, largest);
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll
    for (int w = 1; w < kThreads / 32; ++w) largest = max(largest, warp_largest[w]);
    auto* place = reinterpret_cast<uint32_t*>(scaling + Fp8Scaling::kLargest);
    if (largest > __ldcg(place)) atomicMax(place, largest);  // mostly it is not: blocks need not queue at one address
  }
  if (!transposed) return;
#pragma unroll
  for (int o = 0; o < Source::kOutputs; ++o) {
#pragma unroll
    for (int i = 0; i < kSide; ++i) {
      int column = i * (kThreads / kSquares) + threadIdx.x / kSquares, chunk = threadIdx.x % kSquares;
      int64_t to_column = int64_t{blockIdx.x} * kTile + column, to_row = int64_t{blockIdx.y} * kTile + chunk * kSide;
      if (to_column < columns && to_row < rows) {
        *reinterpret_cast<uint2*>(transposed + (o * columns + to_column) * rows + to_row) =
            tile[o][column][chunk ^ (column / kSide)];
      }
    }
  }
}

void check_output(const char* what, const Fp8Output& y, int64_t rows, int64_t width) {
  SINTER_CHECK(rows % 16 == 0 && width % 16 == 0, "[{}] a matrix of ({}, {}); fp8 needs multiples of 16", what, rows,
               width);
  SINTER_CHECK(y.scaling.num_elements() == Fp8Scaling::kSize, "[{}] a scaling of {} numbers; expected {}", what,
               y.scaling.num_elements(), Fp8Scaling::kSize);
  for (const Tensor& t : {y.values, y.transposed}) {
    SINTER_CHECK(!t || (base::is_fp8(t.dtype()) && t.num_elements() == rows * width && is_aligned(t.raw(), 8)),
                 "[{}] a result {} in {} for ({}, {}); expected fp8 aligned to 8 bytes", what, t.shape().to_string(),
                 base::dtype_name(t.dtype()), rows, width);
  }
  SINTER_CHECK(!y.values || !y.transposed || y.values.dtype() == y.transposed.dtype(),
               "[{}] the two orders are in {} and {}; expected one format", what, base::dtype_name(y.values.dtype()),
               base::dtype_name(y.transposed.dtype()));
}

template <class Source>
void launch(Stream& stream, const Source& source, int64_t rows, const Fp8Output& y) {
  if (rows == 0 || source.columns == 0) return;
  dim3 grid(static_cast<unsigned>(div_up(source.columns, kTile)), static_cast<unsigned>(div_up(rows, kTile)));
  SINTER_CHECK(grid.y <= 65535, "[fp8] {} rows; at most {} in one call", rows, 65535 * kTile);
  base::DType format = y.values ? y.values.dtype() : y.transposed.dtype();
  auto* values = static_cast<uint8_t*>(y.values.raw());
  auto* transposed = static_cast<uint8_t*>(y.transposed.raw());
  auto run = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, native(stream)>>>(source, rows, y.scaling.data<float>(), values, transposed);
    SINTER_CUDA_LAUNCHED();
  };
  format == base::DType::f8e5m2 ? run(fp8_kernel<Source, __NV_E5M2>) : run(fp8_kernel<Source, __NV_E4M3>);
}

__global__ void rescale_kernel(float* scalings, int64_t count) {
  int64_t s = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (s >= count) return;
  float* row = scalings + s * Fp8Scaling::kSize;
  float* history = row + Fp8Scaling::kHistory;
  float seen = row[Fp8Scaling::kLargest];
  if (seen > 0 && isfinite(seen)) {
    for (int i = Fp8Scaling::kHistorySteps - 1; i > 0; --i) history[i] = history[i - 1];
    history[0] = seen;
  }
  float largest = 0;
  for (int i = 0; i < Fp8Scaling::kHistorySteps; ++i) largest = fmaxf(largest, history[i]);
  float scale = 1.0f;
  if (largest > 0) {
    float most = fminf(fmaxf(row[Fp8Scaling::kLimit] / largest, 0x1p-100f), 0x1p100f);
    scale = __uint_as_float(__float_as_uint(most) & 0x7f800000u);  // the power of two at or below it
  }
  row[Fp8Scaling::kScale] = scale;
  row[Fp8Scaling::kInverse] = 1.0f / scale;
  row[Fp8Scaling::kLargest] = 0.0f;
}

}  // namespace

void fp8_quantize(Stream& stream, const Fp8QuantizeArgs& args) {
  int64_t rows = args.x.rows(), columns = args.x.size(-1);
  check_output("fp8_quantize", args.y, rows, columns);
  SINTER_CHECK(is_aligned(args.x.raw()), "[fp8_quantize] x is not aligned to 16 bytes");
  dispatch_format(args.x.dtype(), "fp8_quantize", [&]<class T>(TypeTag<T>) {
    launch(stream, PlainSource<T>{args.x.data<T>(), columns}, rows, args.y);
  });
}

void fp8_swiglu_forward(Stream& stream, const Fp8SwigluForwardArgs& args) {
  int64_t rows = args.x.rows(), columns = args.x.size(-1) / 2;
  check_output("fp8_swiglu_forward", args.y, rows, columns);
  SINTER_CHECK(is_aligned(args.x.raw()), "[fp8_swiglu_forward] x is not aligned to 16 bytes");
  dispatch_format(args.x.dtype(), "fp8_swiglu_forward", [&]<class T>(TypeTag<T>) {
    launch(stream, SwigluSource<T>{args.x.data<T>(), columns}, rows, args.y);
  });
}

void fp8_swiglu_backward(Stream& stream, const Fp8SwigluBackwardArgs& args) {
  int64_t rows = args.x.rows(), columns = args.x.size(-1) / 2;
  check_output("fp8_swiglu_backward", args.dx, rows, 2 * columns);
  SINTER_CHECK(columns % 16 == 0 && args.dy.num_elements() == rows * columns && args.dy.dtype() == args.x.dtype(),
               "[fp8_swiglu_backward] dy {} in {} beside x {} in {}", args.dy.shape().to_string(),
               base::dtype_name(args.dy.dtype()), args.x.shape().to_string(), base::dtype_name(args.x.dtype()));
  SINTER_CHECK(is_aligned(args.x.raw()) && is_aligned(args.dy.raw()),
               "[fp8_swiglu_backward] x or dy is not aligned to 16 bytes");
  dispatch_format(args.x.dtype(), "fp8_swiglu_backward", [&]<class T>(TypeTag<T>) {
    launch(stream, SwigluGradientSource<T>{args.x.data<T>(), args.dy.data<T>(), columns}, rows, args.dx);
  });
}

void fp8_rescale(Stream& stream, const Fp8RescaleArgs& args) {
  int64_t count = args.scalings.rows();
  if (count == 0) return;
  rescale_kernel<<<static_cast<unsigned>(div_up(count, 64)), 64, 0, native(stream)>>>(args.scalings.data<float>(),
                                                                                      count);
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
