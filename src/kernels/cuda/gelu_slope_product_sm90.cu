// c = (a b) * gelu'(x) in one kernel, with the sums of c's columns where they are wanted: the gradients through
// tanh-GELU and of the bias before it.
#include "kernels/cuda/cutlass_sm90.cuh"
#include "kernels/cuda/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

template <class T>
struct TimesSlope;
template <int N>
struct TimesSlope<cutlass::Array<float, N>> {
  using Floats = cutlass::Array<float, N>;
  __device__ Floats operator()(const Floats& gradient, const Floats& x) const {
    Floats y;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float square = x[i] * x[i];
      float s = gelu_sigmoid(x[i], square);
      // d(x s)/dx = s + x s (1 - s) 2 u'
      float curve = x[i] * (1.5957691f + 0.21406445f * square);
      y[i] = gradient[i] * (s + (s - s * s) * curve);
    }
    return y;
  }
};
template <>
struct TimesSlope<float> {};  // CUTLASS asks the scalar form for arguments: it has none

// A node of an epilogue that hands on what it gets and leaves, where they are wanted, the sums of its columns over each
// warp's rows of the tile. The warps of the group that has the tile hold 16 rows of every 64; of 32 columns a lane has
// 8 i + 2 (lane % 4) and the next, i < 4, in row lane / 4 and in the row 8 below, as wgmma leaves them.
struct ColumnSumsArguments {
  float* partials = nullptr;  // (4 * row tiles, columns rounded up to whole tiles), or null: no sums
};
struct ColumnSums : Node<ColumnSumsArguments> {
  using Node::Node;
  static constexpr int kWarps = 4, kRows = Square::kRows, kColumns = Square::kColumns, kSteps = kRows / 64;
  static_assert(cute::size<0>(Square::Part{}) == 64 && cute::size<1>(Square::Part{}) == 32);

  struct StoreCallbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE StoreCallbacks(float* to) : to(to) {}
    float* to;  // of this lane's first column, or null
    float sums[8];

    template <class Accumulator, class Input, int kCount>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Accumulator, kCount>&, int, int epi_m, int epi_n,
                              const cutlass::Array<Input, kCount>& x) {
      static_assert(kCount == 16);
#pragma unroll
      for (int v = 0; v < 8; ++v) {
        const float both = x[v / 2 * 4 + v % 2] + x[v / 2 * 4 + 2 + v % 2];
        sums[v] = epi_m == 0 ? both : sums[v] + both;
      }
      if (epi_m != kSteps - 1) return x;
      // Over the eight lanes of a column: each step hands half of the values to the lane across.
      const int lane = threadIdx.x % 32;
#pragma unroll
      for (int half = 4; half > 0; half /= 2) {
        const bool is_upper = (lane & 4 * half) != 0;
#pragma unroll
        for (int v = 0; v < half; ++v) {
          const float mine = is_upper ? sums[v + half] : sums[v], other = is_upper ? sums[v] : sums[v + half];
          sums[v] = mine + __shfl_xor_sync(0xffffffffu, other, 4 * half);
        }
      }
      if (to) to[epi_n * 32] = sums[0];
      return x;
    }
  };
  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const int m = cute::get<0>(args.tile_coord_mnkl), n = cute::get<1>(args.tile_coord_mnkl);
    const int rows = cute::get<0>(args.problem_shape_mnkl), columns = cute::get<1>(args.problem_shape_mnkl);
    // A cluster may have a tile that lies outside of c altogether.
    if (!params.partials || m * kRows >= rows || n * kColumns >= columns) return StoreCallbacks(nullptr);
    const int lane = args.thread_idx % 32, value = lane / 4;  // of the eight, after the exchange
    const int64_t stride = int64_t{(columns + kColumns - 1) / kColumns} * kColumns;
    return StoreCallbacks(params.partials + (m * kWarps + args.thread_idx / 32) * stride + n * kColumns +
                          value / 2 * 8 + lane % 4 * 2 + value % 2);
  }
};

using Sloped = fusion::Sm90EVT<fusion::Sm90Compute<TimesSlope, float, float, kNearest>, fusion::Sm90AccFetch,
                               fusion::Sm90SrcFetch<Bf16>>;
using Backward = Product<Square, RowMajor, Bf16, Bf16, fusion::Sm90EVT<ColumnSums, Sloped>>;

}  // namespace
}  // namespace sm90

void sm90_gelu_slope_product(Stream& stream, const FusedMatmulArgs& args) {
  constexpr int64_t kRows = sm90::ColumnSums::kRows, kColumns = sm90::ColumnSums::kColumns;
  const int64_t columns = args.product.c.size(-1), stride = div_up(columns, kColumns) * kColumns,
                groups = div_up(args.product.c.rows(), kRows) * sm90::ColumnSums::kWarps;
  float* partials = nullptr;
  if (args.c_sums) {
    partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * groups * stride));
  }
  sm90::Backward::run(stream, args.product, {{}, {partials}}, args.activation_input.raw());
  if (partials) reduce_partials(stream, partials, groups, columns, stride, args.c_sums.data<float>(), true);
}

}  // namespace sinter::kernels::cuda
