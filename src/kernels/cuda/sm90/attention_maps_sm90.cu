// Descriptions of tensors in memory for Hopper's copy engine.
#include "kernels/cuda/sm90/attention_sm90.cuh"

namespace sinter::kernels::cuda::sm90 {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// By way of the runtime: the program also starts where no driver is.
Encode encode_function() {
  static const Encode function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    SINTER_CUDA_CHECK(
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result));
    SINTER_CHECK(found && result == cudaDriverEntryPointSuccess,
                 "[attention] the CUDA driver has no cuTensorMapEncodeTiled; a driver for CUDA 12 or newer is needed");
    return reinterpret_cast<Encode>(found);
  }();
  return function;
}

CUtensorMap describe(CUtensorMapDataType type, const void* first, cuuint32_t rank, const cuuint64_t* sizes,
                     const cuuint64_t* strides, const cuuint32_t* box, CUtensorMapSwizzle swizzle) {
  constexpr cuuint32_t kSteps[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult status = encode_function()(&map, type, rank, const_cast<void*>(first), sizes, strides, box, kSteps,
                                            CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SINTER_CHECK(status == CUDA_SUCCESS, "[attention] the copy engine refused a tensor of {} x {}: error {}", sizes[0],
               rank > 1 ? sizes[1] : 1, static_cast<int>(status));
  return map;
}

}  // namespace

CUtensorMap head_tiles(const void* first, int64_t heads, int64_t width, int64_t length, int64_t sequences,
                       int box_rows) {
  const auto row_bytes = static_cast<cuuint64_t>(width) * 2;
  const cuuint64_t sizes[] = {kHeadDim, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(length),
                              static_cast<cuuint64_t>(sequences)};
  const cuuint64_t strides[] = {kHeadBytes, row_bytes, row_bytes * static_cast<cuuint64_t>(length)};
  const cuuint32_t box[] = {kHeadDim, 1, static_cast<cuuint32_t>(box_rows), 1};
  return describe(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, first, 4, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

CUtensorMap number_tiles(const float* first, int64_t count) {
  const auto size = static_cast<cuuint64_t>(count);
  constexpr cuuint32_t kBox = kBlock;
  constexpr cuuint64_t kNoStrides[] = {0};
  return describe(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, first, 1, &size, kNoStrides, &kBox, CU_TENSOR_MAP_SWIZZLE_NONE);
}

}  // namespace sinter::kernels::cuda::sm90
