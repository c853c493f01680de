// Descriptions of heads in memory for Hopper's copy engine.
#include "kernels/cuda/attention_sm90.cuh"

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

}  // namespace

CUtensorMap head_tiles(const void* first, int64_t heads, int64_t width, int64_t length, int64_t sequences,
                       int box_rows) {
  CUtensorMap map;
  const cuuint64_t row_bytes = static_cast<cuuint64_t>(width) * 2;
  const cuuint64_t sizes[] = {kHeadDim, static_cast<cuuint64_t>(heads), static_cast<cuuint64_t>(length),
                              static_cast<cuuint64_t>(sequences)};
  const cuuint64_t strides[] = {kHeadBytes, row_bytes, row_bytes * static_cast<cuuint64_t>(length)};
  const cuuint32_t box[] = {kHeadDim, 1, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1, 1};
  const CUresult status =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, const_cast<void*>(first), sizes, strides, box, steps,
                        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  SINTER_CHECK(status == CUDA_SUCCESS, "[attention] the copy engine refused {} heads of {} in rows of {}: error {}",
               heads, kHeadDim, width, static_cast<int>(status));
  return map;
}

}  // namespace sinter::kernels::cuda::sm90
