// A stable sort of small integers with their positions: what makes the embedding's and the experts' sums ordered.
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

__global__ void prepare_keys(const int32_t* keys, int64_t count, uint32_t first, uint32_t key_count, uint32_t* out,
                             int32_t* positions) {
  int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= count) return;
  uint32_t key = static_cast<uint32_t>(keys[i]) - first;  // keys below the first become large
  out[i] = key < key_count ? key : key_count;
  positions[i] = static_cast<int32_t>(i);
}

}  // namespace

SortedKeys sort_keys(Stream& stream, const int32_t* keys, int64_t count, int64_t key_count, int64_t first) {
  int bits = 1;
  while ((int64_t{1} << bits) <= key_count) ++bits;
  size_t temp_bytes = 0;
  uint32_t* none = nullptr;
  int32_t* nothing = nullptr;
  SINTER_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(nullptr, temp_bytes, none, none, nothing, nothing,
                                                    static_cast<int>(count), 0, bits, native(stream)));
  size_t array = (static_cast<size_t>(count) * 4 + 255) / 256 * 256;
  auto* base = static_cast<char*>(scratch(stream, Scratch::sort, 4 * array + temp_bytes));
  auto* keys_in = reinterpret_cast<uint32_t*>(base);
  auto* keys_out = reinterpret_cast<uint32_t*>(base + array);
  auto* positions_in = reinterpret_cast<int32_t*>(base + 2 * array);
  auto* positions_out = reinterpret_cast<int32_t*>(base + 3 * array);
  prepare_keys<<<static_cast<unsigned>(div_up(count, 256)), 256, 0, native(stream)>>>(
      keys, count, static_cast<uint32_t>(first), static_cast<uint32_t>(key_count), keys_in, positions_in);
  SINTER_CUDA_LAUNCHED();
  SINTER_CUDA_CHECK(cub::DeviceRadixSort::SortPairs(base + 4 * array, temp_bytes, keys_in, keys_out, positions_in,
                                                    positions_out, static_cast<int>(count), 0, bits, native(stream)));
  return {reinterpret_cast<const int32_t*>(keys_out), positions_out};
}

}  // namespace sinter::kernels::cuda
