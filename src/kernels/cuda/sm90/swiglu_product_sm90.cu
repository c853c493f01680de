// [gate | up] = a b^T and h = silu(gate) * up in one kernel, all stored.
#include "kernels/cuda/sm90/sm90.h"
#include "kernels/cuda/sm90/swiglu_sm90.cuh"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

using Outputs = Tensors<Banded, void>;

// The epilogue of tiles of PairedColumns: stores gate, up and h. Arguments: of [gate | up] and of h.
struct GatedStores : fusion::detail::Sm90VisitorImpl<Outputs::Store, Outputs::Store> {
  using Store = Outputs::Store;
  using Base = fusion::detail::Sm90VisitorImpl<Store, Store>;
  using Base::Base;
  using ElementAux = Bf16;  // CUTLASS asks for it as it has no result of its own
  using Arguments = Base::Arguments;
  using Params = Base::Params;
  static constexpr int kHalf = Banded::kColumns / 2;
  using HalfTile = Tiles<Banded::kRows, kHalf>::Tile;
  // Parts of half a tile, along the rows and the columns, and elements of a part in one of 128 threads.
  static constexpr int kRows = Banded::kRows / cute::size<0>(Banded::Part{});
  static constexpr int kColumns = kHalf / cute::size<1>(Banded::Part{});
  static constexpr int kElements = cute::size(Banded::Part{}) / 128;

  template <class Shape>
  CUTLASS_HOST_DEVICE static constexpr auto half_of(const Shape& problem) {
    return cute::make_shape(cute::get<0>(problem), cute::get<1>(problem) / 2, cute::get<2>(problem),
                            cute::get<3>(problem));
  }
  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape& problem, const Arguments& args, void* workspace) {
    return {Store::to_underlying_arguments(problem, args.op_0, workspace),
            Store::to_underlying_arguments(half_of(problem), args.op_1, workspace)};
  }

  template <class Half, class Result>
  struct Callbacks : fusion::detail::EmptyConsumerStoreCallbacks {
    Half gate, up;
    Result h;
    cutlass::Array<Bf16, kElements> gates[kColumns][kRows];

    CUTLASS_DEVICE Callbacks(Half gate_, Half up_, Result h_) : gate(gate_), up(up_), h(h_) {}

    // Parts come column by column: gate's before those of up.
    template <class Sum, int N>
    CUTLASS_DEVICE cutlass::Array<Bf16, N> visit(const cutlass::Array<Sum, N>& sums, int v, int row, int column) {
      static_assert(N == kElements);
      // As they are stored: h is then what the activation alone would make of them, and what backward takes it for.
      auto rounded = cutlass::NumericArrayConverter<Bf16, Sum, N, kNearest>{}(sums);
      if (column < kColumns) {
        gates[column][row] = rounded;
        gate.visit(sums, v, row, column, rounded);
      } else {
        up.visit(sums, v, row, column, rounded);
        cutlass::Array<float, N> product;
#pragma unroll
        for (int i = 0; i < N; ++i) {
          float x = static_cast<float>(gates[column - kColumns][row][i]);
          product[i] = x * silu_sigmoid(x) * static_cast<float>(rounded[i]);
        }
        h.visit(sums, v, row, column, product);
      }
      return rounded;
    }
    CUTLASS_DEVICE void postreduce(int row, int column, int iteration, bool issues) {
      if (column < kColumns) {
        gate.postreduce(row, column, iteration, issues);
      } else {
        up.postreduce(row, column - kColumns, iteration, issues);
        h.postreduce(row, column - kColumns, iteration, issues);
      }
    }
    CUTLASS_DEVICE void tma_store(int row, int column, int iteration, bool issues) {
      if (column < kColumns) {
        gate.tma_store(row, column, iteration, issues);
      } else {
        up.tma_store(row, column - kColumns, iteration, issues);
        h.tma_store(row, column - kColumns, iteration, issues);
      }
    }
  };

  template <bool kReferenceSource, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::detail::ConsumerStoreArgs<Args...>& args) {
    const auto& coord = args.tile_coord_mnkl;
    const int n = cute::get<1>(coord), tiles = cute::get<1>(args.problem_shape_mnkl) / 2 / kHalf;
    auto tile_at = [&](auto& op, auto problem, int column) {
      auto at = cute::make_coord(cute::get<0>(coord), column, cute::get<2>(coord), cute::get<3>(coord));
      return op.template get_consumer_store_callbacks<kReferenceSource>(fusion::detail::ConsumerStoreArgs(
          problem, HalfTile{}, at, args.tiled_mma, args.epi_tile, args.tiled_copy, args.cD, args.residue_cD, args.tCcD,
          args.residue_tCcD, args.tCrC, args.thread_idx));
    };
    auto gate = tile_at(cute::get<0>(this->ops), args.problem_shape_mnkl, n);
    auto up = tile_at(cute::get<0>(this->ops), args.problem_shape_mnkl, n + tiles);
    auto h = tile_at(cute::get<1>(this->ops), half_of(args.problem_shape_mnkl), n);
    return Callbacks<decltype(gate), decltype(h)>(gate, up, h);
  }
};

using GatedForward = Product<Banded, ColumnMajor, void, void, GatedStores, PairedColumns>;

}  // namespace
}  // namespace sm90

void sm90_swiglu_product(Stream& stream, const FusedMatmulArgs& args) {
  using sm90::Bf16, sm90::Outputs;
  const int F = static_cast<int>(args.product.c.size(-1));
  sm90::GatedForward::run(stream, args.product,
                          {{static_cast<Bf16*>(args.pre_activation.raw()), Outputs::rows_of(2 * F)},
                           {static_cast<Bf16*>(args.product.c.raw()), Outputs::rows_of(F)}},
                          2 * F, nullptr, nullptr, 0);
}

}  // namespace sinter::kernels::cuda
