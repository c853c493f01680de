// Matrix products on Hopper by CUTLASS: warp-specialized persistent kernels fed and emptied by the bulk tensor copy
// engine, with an epilogue of our choice. Only files named *_sm90.cu include this: they are compiled for sm_90a alone.
#pragma once
#include <cutlass/cutlass.h>
//
#include <cutlass/gemm/device/gemm_universal_adapter.h>

#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda::sm90 {

namespace fusion = cutlass::epilogue::fusion;

using cute::_1;
using cute::_2;
using cute::_64;
using Bf16 = cutlass::bfloat16_t;
// CUTLASS calls b (inner, columns): our b is ColumnMajor when it is transposed, (n, k) in memory, else RowMajor.
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
inline constexpr auto kNearest = cutlass::FloatRoundStyle::round_to_nearest;

// How a product is cut up. Two groups of warps take tiles in turn: one multiplies while the other runs its epilogue,
// which therefore costs time only where it is longer than the product. Two blocks of a cluster, one below the other,
// share what they read of b. kBand: tiles across that are taken before those of the next row, so that what they read
// stays in the cache.
template <int kTileRows, int kTileColumns, int kPartColumns = 32, int kBand = 1>
struct Tiles {
  static constexpr int kRows = kTileRows, kColumns = kTileColumns, kBandWidth = kBand;
  using Tile = cute::Shape<cute::Int<kRows>, cute::Int<kColumns>, _64>;
  using Part = cute::Shape<_64, cute::Int<kPartColumns>>;  // what the epilogue has in hand at a time
};
using Square = Tiles<128, 128>;
using Wide = Tiles<128, 128, 64>;  // half as many waits of all warps in the epilogue, for more shared memory
using Cluster = cute::Shape<_2, _1, _1>;
using MainSchedule = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized;

// Tensors that an epilogue writes or reads in tiles beside CUTLASS's own. Arguments: address, rows_of(width).
// Source is what CUTLASS's epilogue reads itself beside the product, in the shape of its result, or void.
template <class Tiling, class Source, class Element = Bf16>
struct Tensors {
  using Descriptor =
      cutlass::epilogue::collective::detail::EpilogueDescriptor<typename Tiling::Tile, typename Tiling::Part, Source,
                                                                Bf16, EpilogueSchedule>;
  static constexpr int kAlignment = 16 / sizeof(Element);
  using StoreParts = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Descriptor, RowMajor, Element>;
  using Store = fusion::Sm90AuxStore<StoreParts::Stages, typename StoreParts::EpilogueTile, Element, kNearest,
                                     typename StoreParts::Stride, typename StoreParts::SmemLayoutAtom,
                                     typename StoreParts::CopyOpR2S, kAlignment, false>;
  using LoadParts = cutlass::epilogue::collective::detail::AuxLoadDescriptor<Descriptor, RowMajor, Element>;
  using Load =
      fusion::Sm90AuxLoad<LoadParts::Stages, typename LoadParts::EpilogueTile, Element, typename LoadParts::Stride,
                          typename LoadParts::SmemLayoutAtom, typename LoadParts::CopyOpS2R, kAlignment, false>;
  static typename StoreParts::Stride rows_of(int64_t width) {
    typename StoreParts::Stride stride{};
    cute::get<0>(stride) = width;
    return stride;
  }
};

// The product with one bf16 a column added, or zeros.
template <class Tiling, class Result = float>
using Biased = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::plus, Result, float, kNearest>, fusion::Sm90AccFetch,
                               fusion::Sm90RowBroadcast<0, typename Tiling::Tile, Bf16, float>>;

struct Nothing {};
// What a node of an epilogue tells CUTLASS of itself when it loads no tiles.
template <class NodeArguments, class Shared = Nothing>
struct Node {
  using SharedStorage = Shared;
  using Arguments = NodeArguments;
  using Params = NodeArguments;
  template <class Shape>
  static constexpr Params to_underlying_arguments(const Shape&, const Arguments& arguments, void*) {
    return arguments;
  }
  template <class Shape>
  static bool can_implement(const Shape&, const Arguments&) {
    return true;
  }
  template <class Shape>
  static size_t get_workspace_size(const Shape&, const Arguments&) {
    return 0;
  }
  template <class Shape>
  static cutlass::Status initialize_workspace(const Shape&, const Arguments&, void*, cudaStream_t,
                                              cutlass::CudaHostAdapter* = nullptr) {
    return cutlass::Status::kSuccess;
  }
  CUTLASS_HOST_DEVICE Node() {}
  CUTLASS_HOST_DEVICE Node(const Params& given, const SharedStorage& storage)
      : params(given), shared(const_cast<SharedStorage*>(&storage)) {}
  CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return false; }
  template <class Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(const Args&) {
    return fusion::EmptyProducerLoadCallbacks{};
  }

  Params params;
  SharedStorage* shared;
};

template <class Mainloop>
using PlainLoads = Mainloop;

// Source: as above. Result is what CUTLASS's epilogue writes itself: Bf16 or void. Loads: the main loop, or one made
// of it.
template <class Tiling, class LayoutB, class Source, class Result, class Callbacks,
          template <class> class Loads = PlainLoads>
struct Product {
  using Tile = typename Tiling::Tile;
  static constexpr int kSourceAlignment = 16 / sizeof(std::conditional_t<std::is_void_v<Source>, Bf16, Source>);
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, typename Tiling::Part, float, float, Source,
      RowMajor, kSourceAlignment, Result, RowMajor, 8, EpilogueSchedule, Callbacks>::CollectiveOp;
  using CollectiveMainloop = Loads<typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, RowMajor, 8, Bf16, LayoutB, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainSchedule>::CollectiveOp>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                      CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using CallbackArguments = typename CollectiveEpilogue::FusionCallbacks::Arguments;

  // c (m, n) = epilogue(a (m, k) b), with `source` (m, n) or null.
  static void run(Stream& stream, const MatmulArgs& args, const CallbackArguments& callbacks,
                  const void* source = nullptr) {
    const int n = static_cast<int>(args.c.size(-1));
    run(stream, args, callbacks, n, source, args.c.raw(), n);
  }

  // epilogue(a (m, k) b), n columns. `source` and `result` have rows of `width` elements, or are null.
  static void run(Stream& stream, const MatmulArgs& args, const CallbackArguments& callbacks, int n, const void* source,
                  void* result, int width) {
    const int m = static_cast<int>(args.c.rows()), k = static_cast<int>(args.a.num_elements() / m);
    typename Gemm::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
    arguments.problem_shape = {m, n, k, 1};
    arguments.mainloop.ptr_A = static_cast<const Bf16*>(args.a.raw());
    cute::get<0>(arguments.mainloop.dA) = k;
    arguments.mainloop.ptr_B = static_cast<const Bf16*>(args.b.data.raw());
    // b is (n, k) in memory when its inner size is contiguous, else (k, n)
    if constexpr (std::is_same_v<LayoutB, ColumnMajor>) {
      cute::get<0>(arguments.mainloop.dB) = k;
    } else {
      cute::get<1>(arguments.mainloop.dB) = n;
    }
    arguments.epilogue.thread = callbacks;
    arguments.epilogue.ptr_C = static_cast<const Source*>(source);
    arguments.epilogue.ptr_D = static_cast<const Result*>(result);
    cute::get<0>(arguments.epilogue.dC) = cute::get<0>(arguments.epilogue.dD) = width;
    arguments.hw_info.device_id = stream.device.index;
    arguments.hw_info.sm_count = num_multiprocessors(stream);
    arguments.scheduler.max_swizzle_size = Tiling::kBandWidth;
    Gemm gemm;
    void* workspace = scratch(stream, Scratch::workspace, std::max<size_t>(256, Gemm::get_workspace_size(arguments)));
    cutlass::Status status = gemm.run(arguments, workspace, native(stream));
    SINTER_CHECK(status == cutlass::Status::kSuccess, "[matmul] CUTLASS refused ({}, {}, {}): {}", m, n, k,
                 cutlass::cutlassGetStatusString(status));
    SINTER_CUDA_LAUNCHED();
  }
};

}  // namespace sinter::kernels::cuda::sm90
