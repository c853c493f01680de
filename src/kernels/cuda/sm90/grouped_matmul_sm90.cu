// Products over groups of rows on Hopper: CUTLASS's grouped kernels. Sizes and addresses of the groups are written by a
// small kernel from the offsets on the device, so the host never waits for them.
#include <cutlass/gemm/group_array_problem_shape.hpp>

#include "kernels/cuda/sm90/cutlass_sm90.cuh"
#include "kernels/cuda/sm90/sm90.h"

namespace sinter::kernels::cuda {
namespace sm90 {
namespace {

using GroupShape = cute::Shape<int, int, int>;
using GroupCluster = cute::Shape<_1, _2, _1>;  // along the columns: the rows of a group are few

// The factors of all groups, in elements: group e of rows [o[e], o[e + 1]).
struct Groups {
  const int32_t* offsets;
  int count, m, n, k;  // the sizes that do not differ by group; 0 for the one that does
  const Bf16 *a, *b;
  void* c;
};

// One array after the other in a block of device memory, each aligned to 16 bytes.
template <class Kernel, class Out>
struct GroupArrays {
  GroupShape* shapes;
  const Bf16 **a, **b;
  Out** c;
  typename Kernel::InternalStrideA* stride_a;
  typename Kernel::InternalStrideB* stride_b;
  typename Kernel::InternalStrideD* stride_c;

  static size_t bytes_for(int count) { return 7 * bytes_of_array(count); }
  static size_t bytes_of_array(int count) { return (static_cast<size_t>(count) * 16 + 255) / 256 * 256; }
  GroupArrays(char* memory, int count) {
    auto place = [&]<class T>(T*& array) {
      static_assert(sizeof(T) <= 16);
      array = reinterpret_cast<T*>(memory);
      memory += bytes_of_array(count);
    };
    place(shapes), place(a), place(b), place(c), place(stride_a), place(stride_b), place(stride_c);
  }
};

template <class Stride>
__device__ void set_stride(Stride& stride, int64_t of_rows) {
  stride = Stride{};
  if constexpr (std::is_same_v<std::decay_t<decltype(cute::get<0>(stride))>, int64_t>) {
    cute::get<0>(stride) = of_rows;
  } else {
    cute::get<1>(stride) = of_rows;
  }
}

template <bool kTransposeA, bool kTransposeB, class Arrays>
__global__ void write_groups_kernel(Groups g, Arrays arrays) {
  for (int e = threadIdx.x; e < g.count; e += blockDim.x) {
    int64_t first = g.offsets[e];
    int rows = static_cast<int>(g.offsets[e + 1] - first);
    using Out = std::decay_t<decltype(**arrays.c)>;
    if constexpr (kTransposeA) {  // c[e] (m, n) = a[rows]^T b[rows]; a group without rows is left to zero_empty_kernel
      arrays.shapes[e] = {rows > 0 ? g.m : 0, g.n, rows};
      arrays.a[e] = g.a + first * g.m;
      arrays.b[e] = g.b + first * g.n;
      arrays.c[e] = static_cast<Out*>(g.c) + int64_t{e} * g.m * g.n;
      set_stride(arrays.stride_a[e], g.m);
      set_stride(arrays.stride_b[e], g.n);
    } else {
      arrays.shapes[e] = {rows, g.n, g.k};
      arrays.a[e] = g.a + first * g.k;
      arrays.b[e] = g.b + int64_t{e} * g.n * g.k;
      arrays.c[e] = static_cast<Out*>(g.c) + first * g.n;
      set_stride(arrays.stride_a[e], g.k);
      set_stride(arrays.stride_b[e], kTransposeB ? g.k : g.n);
    }
    set_stride(arrays.stride_c[e], g.n);
  }
}

// Zeros c[e] for groups without rows: four floats a thread.
__global__ void zero_empty_kernel(const int32_t* offsets, float4* c, int64_t vectors) {
  int e = blockIdx.y;
  if (offsets[e + 1] != offsets[e]) return;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * blockDim.x) {
    c[e * vectors + i] = float4{};
  }
}

template <bool kTransposeA, bool kTransposeB, class Out>
struct GroupedProduct {
  static constexpr int kAlignOut = 16 / static_cast<int>(sizeof(Out));
  using LayoutA = std::conditional_t<kTransposeA, ColumnMajor, RowMajor>;
  using LayoutB = std::conditional_t<kTransposeB, ColumnMajor, RowMajor>;
  using Source = std::conditional_t<std::is_same_v<Out, float>, float, void>;  // f32 results may be added to
  using EpilogueKind = cutlass::epilogue::PtrArrayTmaWarpSpecializedPingpong;
  using CollectiveEpilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Square::Tile, GroupCluster, Square::Part, float, float,
      Source, RowMajor*, kAlignOut, Out, RowMajor*, kAlignOut, EpilogueKind,
      cutlass::epilogue::fusion::LinearCombination<Out, float, Source, float>>::CollectiveOp;
  using CollectiveMainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, LayoutA*, 8, Bf16, LayoutB*, 8, float, Square::Tile,
      GroupCluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename CollectiveEpilogue::SharedStorage))>,
      cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>::CollectiveOp;
  using Shapes = cutlass::gemm::GroupProblemShape<GroupShape>;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shapes, CollectiveMainloop, CollectiveEpilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;
  using Arrays = GroupArrays<Kernel, Out>;

  static void run(Stream& stream, const MatmulArgs& args) {
    Groups groups{};
    groups.offsets = args.group_offsets.data<int32_t>();
    groups.count = static_cast<int>(args.group_offsets.num_elements() - 1);
    groups.n = static_cast<int>(args.c.size(-1));
    (kTransposeA ? groups.m : groups.k) = static_cast<int>(args.a.size(-1));
    groups.a = static_cast<const Bf16*>(args.a.raw());
    groups.b = static_cast<const Bf16*>(args.b.data.raw());
    groups.c = args.c.raw();
    if constexpr (kTransposeA) {
      if (!args.accumulate) {
        int64_t vectors = int64_t{groups.m} * groups.n / 4;
        dim3 grid(grid_for(stream, vectors, 256, 1), static_cast<unsigned>(groups.count));
        zero_empty_kernel<<<grid, 256, 0, native(stream)>>>(groups.offsets, static_cast<float4*>(groups.c), vectors);
        SINTER_CUDA_LAUNCHED();
      }
    }
    typename Gemm::Arguments arguments{};
    arguments.mode = cutlass::gemm::GemmUniversalMode::kGrouped;
    arguments.hw_info.device_id = stream.device.index;
    arguments.hw_info.sm_count = num_multiprocessors(stream);
    arguments.problem_shape.num_groups = groups.count;
    arguments.epilogue.thread.alpha = args.alpha;
    arguments.epilogue.thread.beta = args.accumulate ? 1.0f : 0.0f;
    const size_t arrays_bytes = Arrays::bytes_for(groups.count);
    auto* memory = static_cast<char*>(
        scratch(stream, Scratch::workspace, arrays_bytes + std::max<size_t>(256, Gemm::get_workspace_size(arguments))));
    Arrays arrays(memory, groups.count);
    write_groups_kernel<kTransposeA, kTransposeB><<<1, 256, 0, native(stream)>>>(groups, arrays);
    SINTER_CUDA_LAUNCHED();
    arguments.problem_shape.problem_shapes = arrays.shapes;
    arguments.mainloop.ptr_A = arrays.a;
    arguments.mainloop.dA = arrays.stride_a;
    arguments.mainloop.ptr_B = arrays.b;
    arguments.mainloop.dB = arrays.stride_b;
    if constexpr (!std::is_void_v<Source>) arguments.epilogue.ptr_C = const_cast<const Out**>(arrays.c);
    arguments.epilogue.dC = arrays.stride_c;
    arguments.epilogue.ptr_D = arrays.c;
    arguments.epilogue.dD = arrays.stride_c;
    Gemm gemm;
    cutlass::Status status = gemm.run(arguments, memory + arrays_bytes, native(stream));
    SINTER_CHECK(status == cutlass::Status::kSuccess, "[matmul] CUTLASS refused a grouped product of {} groups: {}",
                 groups.count, cutlass::cutlassGetStatusString(status));
    SINTER_CUDA_LAUNCHED();
  }
};

}  // namespace
}  // namespace sm90

void sm90_grouped_matmul(Stream& stream, const MatmulArgs& args) {
  if (args.transpose_a) {
    sm90::GroupedProduct<true, false, float>::run(stream, args);
  } else if (args.transpose_b) {
    sm90::GroupedProduct<false, true, sm90::Bf16>::run(stream, args);
  } else {
    sm90::GroupedProduct<false, false, sm90::Bf16>::run(stream, args);
  }
}

}  // namespace sinter::kernels::cuda
