// c = (a b) * gelu'(pre) in one kernel, from pre or from the slope itself, with the sums of c's columns where they are
// wanted: the gradients through tanh-GELU and of the bias before it.
#include "kernels/cuda/sm90/gelu_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

constexpr int kRows = Square::kRows, kColumns = Square::kColumns;
constexpr int kWarps = 4;  // of the group that has a tile

struct SumsArguments {
  float* partials = nullptr;  // (row tiles, columns rounded up to whole tiles), or null: no sums
};
struct SumsOfWarps {
  float of[kWarps][kColumns];
};

// The whole epilogue. CUTLASS's source is pre or the slopes. A warp has 16 rows of every 64; of 8 columns a lane has
// 2 (lane % 4) and the next, in row lane / 4 and in the row 8 below, as wgmma leaves them.
template <bool kIsSlope>
struct TimesSlope : Node<SumsArguments, SumsOfWarps> {
  using Node<SumsArguments, SumsOfWarps>::Node;
  static constexpr int kPartRows = cute::size<0>(Square::Part{}), kPartColumns = cute::size<1>(Square::Part{});
  static constexpr int kSums = kPartColumns / 4;  // columns of a part in a lane
  CUTLASS_DEVICE bool is_producer_load_needed() const { return true; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return true; }

  template <class Source>
  struct Callbacks : fusion::EmptyConsumerStoreCallbacks {
    const Source& source;
    SumsOfWarps& of_warps;
    float* to;  // sums of this tile's columns, or null
    int thread;
    float sums[kSums];

    CUTLASS_DEVICE Callbacks(const Source& source_, SumsOfWarps& of_warps_, float* to_, int thread_)
        : source(source_), of_warps(of_warps_), to(to_), thread(thread_) {}

    template <class Sum, int N>
    CUTLASS_DEVICE cutlass::Array<Bf16, N> visit(const cutlass::Array<Sum, N>& gradient, int v, int row, int column) {
      static_assert(N == 2 * kSums && kPartRows == 64);
      cutlass::Array<Bf16, N> result;
      float y[N];
#pragma unroll
      for (int i = 0; i < N; i += 2) {  // two columns in line
        const uint32_t pair = cute::recast<const uint32_t>(cute::coalesce(source))((v * N + i) / 2);
        y[i] = gradient[i] * slope_of(__uint_as_float(pair << 16));
        y[i + 1] = gradient[i + 1] * slope_of(__uint_as_float(pair & 0xffff0000u));
        reinterpret_cast<uint32_t*>(&result)[i / 2] = to_bf16_pair(y[i], y[i + 1]);
      }
#pragma unroll
      for (int s = 0; s < kSums; ++s) {
        const float both = y[s / 2 * 4 + s % 2] + y[s / 2 * 4 + 2 + s % 2];
        sums[s] = row == 0 ? both : sums[s] + both;
      }
      if (row == kRows / kPartRows - 1) keep_sums(column);
      return result;
    }

    // Over the eight lanes of a column.
    CUTLASS_DEVICE void keep_sums(int column) {
      float left[kSums];  // copied: a choice between members would take their addresses
#pragma unroll
      for (int s = 0; s < kSums; ++s) left[s] = sums[s];
      const int lane = thread % 32;
      halve<kSums / 2, 16>(left, lane);
      const int first = lane / 4 * (kSums / 8);  // of those this lane is left with
#pragma unroll
      for (int s = 0; s < kSums / 8; ++s) {
        of_warps.of[thread / 32][column * kPartColumns + (first + s) / 2 * 8 + lane % 4 * 2 + (first + s) % 2] =
            left[s];
      }
    }
    // Hands half of the sums to the lane across, and so on for the half that is left.
    template <int kHalf, int kAcross>
    CUTLASS_DEVICE static void halve(float (&left)[kSums], int lane) {
      const bool is_upper = (lane & kAcross) != 0;
#pragma unroll
      for (int s = 0; s < kHalf; ++s) {
        const float mine = is_upper ? left[s + kHalf] : left[s], other = is_upper ? left[s] : left[s + kHalf];
        left[s] = mine + __shfl_xor_sync(0xffffffffu, other, kAcross);
      }
      if constexpr (kAcross > 4) halve<kHalf / 2, kAcross / 2>(left, lane);
    }

    // Over the warps. The other group of warps begins its epilogue only when this one is done.
    CUTLASS_DEVICE void end() {
      cutlass::arch::NamedBarrier::sync(32 * kWarps, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
      if (!to) return;
      for (int c = thread; c < kColumns; c += 32 * kWarps) {
        to[c] = (of_warps.of[0][c] + of_warps.of[1][c]) + (of_warps.of[2][c] + of_warps.of[3][c]);
      }
    }

    CUTLASS_DEVICE static float slope_of(float x) {
      if constexpr (kIsSlope) return x;
      return gelu_at(x).slope;
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const int m = cute::get<0>(args.tile_coord_mnkl), n = cute::get<1>(args.tile_coord_mnkl);
    const int rows = cute::get<0>(args.problem_shape_mnkl), columns = cute::get<1>(args.problem_shape_mnkl);
    float* to = nullptr;
    // A cluster may have a tile that lies outside of c altogether.
    if (this->params.partials && m * kRows < rows && n * kColumns < columns) {
      to = this->params.partials + (int64_t{m} * ((columns + kColumns - 1) / kColumns) + n) * kColumns;
    }
    return Callbacks<cute::remove_cvref_t<decltype(args.tCrC)>>(args.tCrC, *this->shared, to, args.thread_idx);
  }
};

template <bool kIsSlope>
void run_backward(Stream& stream, const FusedMatmulArgs& args, float* partials) {
  using Backward = Product<Square, RowMajor, Bf16, Bf16, TimesSlope<kIsSlope>>;
  Backward::run(stream, args.product, {partials}, (kIsSlope ? args.slope_input : args.activation_input).raw());
}

}  // namespace
}  // namespace sm90

void sm90_gelu_slope_product(Stream& stream, const FusedMatmulArgs& args) {
  const int64_t columns = args.product.c.size(-1), stride = div_up(columns, sm90::kColumns) * sm90::kColumns,
                groups = div_up(args.product.c.rows(), sm90::kRows);
  float* partials = nullptr;
  if (args.c_sums) {
    partials = static_cast<float*>(scratch(stream, Scratch::partials, sizeof(float) * groups * stride));
  }
  args.slope_input ? sm90::run_backward<true>(stream, args, partials)
                   : sm90::run_backward<false>(stream, args, partials);
  if (partials) reduce_partials(stream, partials, groups, columns, stride, args.c_sums.data<float>(), true);
}

}  // namespace sinter::kernels::cuda
