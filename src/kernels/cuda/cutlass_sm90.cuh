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

using cute::_0;
using cute::_1;
using cute::_128;
using cute::_2;
using cute::_32;
using cute::_64;
using Bf16 = cutlass::bfloat16_t;
// CUTLASS calls b (inner, columns): our b is ColumnMajor when it is transposed, (n, k) in memory, else RowMajor.
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
inline constexpr auto kNearest = cutlass::FloatRoundStyle::round_to_nearest;

// Two groups of warps take tiles in turn: one multiplies while the other runs its epilogue, which therefore costs time
// only where it is longer than the product. Two blocks of a cluster share what they read of b.
using Tile = cute::Shape<_128, _128, _64>;
using Cluster = cute::Shape<_2, _1, _1>;
using EpilogueTile = cute::Shape<_64, _32>;
using MainSchedule = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using EpilogueSchedule = cutlass::epilogue::TmaWarpSpecialized;

// Source is what the epilogue reads beside the product, in the shape of the result: Bf16 or void.
template <class Source>
using Epilogue =
    cutlass::epilogue::collective::detail::EpilogueDescriptor<Tile, EpilogueTile, Source, Bf16, EpilogueSchedule>;

template <class LayoutB, class Source, class Callbacks>
struct Product {
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, EpilogueTile, float, float, Source, RowMajor,
      8, Bf16, RowMajor, 8, EpilogueSchedule, Callbacks>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, RowMajor, 8, Bf16, LayoutB, 8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      MainSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, CollectiveMainloop,
                                                      CollectiveEpilogue, cutlass::gemm::PersistentScheduler>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using CallbackArguments = typename CollectiveEpilogue::FusionCallbacks::Arguments;

  // c (m, n) = epilogue(a (m, k) b), with `source` (m, n) or null.
  static void run(Stream& stream, const MatmulArgs& args, const void* source, const CallbackArguments& callbacks) {
    int m = static_cast<int>(args.c.rows()), n = static_cast<int>(args.c.size(-1));
    int k = static_cast<int>(args.a.num_elements() / m);
    typename Kernel::StrideA stride_a{};
    typename Kernel::StrideB stride_b{};
    typename Kernel::StrideC stride_c{};
    cute::get<0>(stride_a) = k;
    // b is (n, k) in memory when its inner size is contiguous, else (k, n)
    if constexpr (std::is_same_v<LayoutB, ColumnMajor>) {
      cute::get<0>(stride_b) = k;
    } else {
      cute::get<1>(stride_b) = n;
    }
    cute::get<0>(stride_c) = n;
    cutlass::KernelHardwareInfo hardware;
    hardware.device_id = stream.device.index;
    hardware.sm_count = num_multiprocessors(stream);
    typename Gemm::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {m, n, k, 1},
        {static_cast<const Bf16*>(args.a.raw()), stride_a, static_cast<const Bf16*>(args.b.data.raw()), stride_b},
        {callbacks, static_cast<const Bf16*>(source), stride_c, static_cast<Bf16*>(args.c.raw()), stride_c},
        hardware};
    Gemm gemm;
    void* workspace = scratch(stream, Scratch::workspace, std::max<size_t>(256, Gemm::get_workspace_size(arguments)));
    cutlass::Status status = gemm.run(arguments, workspace, native(stream));
    SINTER_CHECK(status == cutlass::Status::kSuccess, "[matmul] CUTLASS refused ({}, {}, {}): {}", m, n, k,
                 cutlass::cutlassGetStatusString(status));
    SINTER_CUDA_LAUNCHED();
  }
};

// Tanh-GELU as x * s with s = sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3): exact to float in the tails too, where
// 1 + tanh(u) would cancel. Two approximate instructions (relative error 2^-22 each).
__device__ __forceinline__ float gelu_sigmoid(float x, float square) {
  float power = x * (-2.3022082f - 0.10294324f * square);  // -2 u log2(e)
  float exponential, inverse;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(exponential) : "f"(power));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(1.0f + exponential));
  return inverse;
}

}  // namespace sinter::kernels::cuda::sm90
