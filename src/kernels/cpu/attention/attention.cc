#include "kernels/cpu/attention/attention.h"

#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/matmul/matmul.h"

namespace sinter::kernels::cpu {

std::vector<SequenceRows> sequences_of(const RaggedBatch& batch, bool is_paged) {
  std::vector<SequenceRows> all;
  const int32_t* offsets = batch.offsets.data<int32_t>();
  for (int64_t s = 0; s < batch.num_sequences; ++s) {
    int64_t first = offsets[s], count = offsets[s + 1] - first;
    all.push_back({s, first, count, is_paged ? batch.contexts.data<int32_t>()[s] : count});
  }
  return all;
}

const PairKernel* pair_kernel() {
  switch (matmul_isa()) {
    case MatmulIsa::amx:
      return amx_pairs();
    case MatmulIsa::avx512_bf16:
      return avx512_bf16_pairs();
    default:
      return nullptr;
  }
}

uint32_t* attention_scratch(int64_t units) {
  thread_local AlignedBuffer buffer;
  return buffer.reserve_array<uint32_t>(units);
}

}  // namespace sinter::kernels::cpu
