// c = a b^T + bias in one kernel, with the query and key heads among its columns rotated to their tokens' positions.
#include "kernels/cuda/sm90/cutlass_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

struct RotationArguments {
  const float* cos_sin;  // (rows, head)
  int rotated;           // columns: those of whole heads, from the first
};

// A node of an epilogue that has a head's columns of 64 rows in hand at a time. Of these a thread has two rows that are
// 8 apart, and in both the columns 8 i + 2 (lane % 4) and the next: with a column also the one half a head further.
template <int kHead>
struct Rotation : Node<RotationArguments> {
  using Node<RotationArguments>::Node;
  using Tiling = Tiles<128, 128, kHead>;

  struct StoreCallbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    CUTLASS_DEVICE StoreCallbacks(const float* cos_sin, int row, int rows, int rotated)
        : cos_sin(cos_sin), row(row), rows(rows), rotated(rotated) {}
    const float* cos_sin;  // at this lane's first column
    int row, rows;         // this lane's first row, and how many there are
    int rotated;           // columns from this tile's first

    template <class Accumulator, class Input, int kCount>
    CUTLASS_DEVICE auto visit(const cutlass::Array<Accumulator, kCount>&, int, int epi_m, int epi_n,
                              const cutlass::Array<Input, kCount>& x) {
      static_assert(kCount == kHead / 2);
      if (epi_n * kHead >= rotated) return x;
      constexpr int kHalf = kCount / 2;
      cutlass::Array<Input, kCount> y;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // Rows past the last are not stored, but have no angles either.
        const float* angles = cos_sin + int64_t{min(row + epi_m * 64 + r * 8, rows - 1)} * kHead;
#pragma unroll
        for (int i = 0; i < kHalf / 4; ++i) {
          const float2 cosine = __ldg(reinterpret_cast<const float2*>(angles + 8 * i));
          const float2 sine = __ldg(reinterpret_cast<const float2*>(angles + 8 * i + kHead / 2));
          const int v = 4 * i + 2 * r;
          y[v] = x[v] * cosine.x - x[v + kHalf] * sine.x;
          y[v + 1] = x[v + 1] * cosine.y - x[v + 1 + kHalf] * sine.y;
          y[v + kHalf] = x[v + kHalf] * cosine.x + x[v] * sine.x;
          y[v + 1 + kHalf] = x[v + 1 + kHalf] * cosine.y + x[v + 1] * sine.y;
        }
      }
      return y;
    }
  };
  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const int m = cute::get<0>(args.tile_coord_mnkl), n = cute::get<1>(args.tile_coord_mnkl);
    const int lane = args.thread_idx % 32, warp = args.thread_idx / 32;
    return StoreCallbacks(this->params.cos_sin + lane % 4 * 2, m * Tiling::kRows + warp * 16 + lane / 4,
                          cute::get<0>(args.problem_shape_mnkl), this->params.rotated - n * Tiling::kColumns);
  }
};

template <int kHead>
void run_rotated(Stream& stream, const RotatedMatmulArgs& args) {
  using Tiling = typename Rotation<kHead>::Tiling;
  using Forward = Product<Tiling, ColumnMajor, void, Bf16, fusion::Sm90EVT<Rotation<kHead>, Biased<Tiling>>>;
  typename Forward::CallbackArguments callbacks{
      {
          {},                                                   // the product
          {static_cast<const Bf16*>(args.product.bias.raw())},  // null: zeros
          {},                                                   // their sum
      },
      {args.rope.cos_sin.template data<float>(), static_cast<int>(args.rope.num_rotated) * kHead},
  };
  Forward::run(stream, args.product, callbacks);
}

}  // namespace
}  // namespace sm90

void sm90_rope_product(Stream& stream, const RotatedMatmulArgs& args) {
  args.rope.head_dim == 64 ? sm90::run_rotated<64>(stream, args) : sm90::run_rotated<128>(stream, args);
}

}  // namespace sinter::kernels::cuda
