// What cuDNN must be told of a ragged batch, from offsets that only the device knows (a captured pass is replayed with
// others).
#include "kernels/cuda/attention/cudnn_attention.h"
#include "kernels/cuda/common.cuh"

namespace sinter::kernels::cuda {
namespace {

constexpr int kBlocks = 64, kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    place_kernel(const int32_t* offsets, int num_sequences, RaggedPlaces to, int64_t row_width, int64_t out_width,
                 uint16_t* written, int64_t written_width, float* per_head, int num_heads, int64_t tokens) {
  for (int64_t s = blockIdx.x * kThreads + threadIdx.x; s <= to.num_sequences; s += kBlocks * kThreads) {
    int64_t first = offsets[min(s, int64_t{num_sequences})];
    to.rows[s] = first * row_width;
    to.outputs[s] = first * out_width;
    to.heads[s] = first;
    if (s < to.num_sequences) to.lengths[s] = s < num_sequences ? static_cast<int>(offsets[s + 1] - first) : 0;
  }
  for (int64_t t = offsets[num_sequences] + int64_t{blockIdx.x}; t < tokens; t += kBlocks) {
    for (int64_t i = threadIdx.x; i < written_width; i += kThreads) written[t * written_width + i] = 0;
    if (per_head) {
      for (int h = threadIdx.x; h < num_heads; h += kThreads) per_head[h * tokens + t] = 0;
    }
  }
}

}  // namespace

void place_sequences(Stream& stream, const AttentionShape& shape, const RaggedBatch& batch, const RaggedPlaces& places,
                     const Tensor& written, const Tensor& per_head) {
  int64_t out_width = shape.num_heads * shape.head_dim, key_width = shape.num_kv_heads * shape.head_dim;
  place_kernel<<<kBlocks, kThreads, 0, native(stream)>>>(
      batch.offsets.data<int32_t>(), static_cast<int>(batch.num_sequences), places, out_width + 2 * key_width,
      out_width, written.data<uint16_t>(), written.size(-1), per_head ? per_head.data<float>() : nullptr,
      static_cast<int>(shape.num_heads), written.size(0));
  SINTER_CUDA_LAUNCHED();
}

}  // namespace sinter::kernels::cuda
