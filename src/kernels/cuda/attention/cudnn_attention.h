// cuDNN's attention over batches of unequal lengths: what it must be told on the device, and a count for tests.
#pragma once
#include "kernels/table.h"

namespace sinter::kernels::cuda {

// Where the sequences of a ragged batch lie, in cuDNN's terms: B lengths, and B + 1 places of their first elements in
// packed rows (T, W), in rows of outputs (T, H * D) and in (H, T). Sequences from the
// batch's own number on are empty.
struct RaggedPlaces {
  int64_t num_sequences = 0;  // B
  int32_t* lengths = nullptr;
  int64_t *rows = nullptr, *outputs = nullptr, *heads = nullptr;
};
// Fills `places` from the batch's offsets; rows of padding tokens become 0 in `written` (T, any width, 16 bits) and,
// when given, in per_head (H, T).
void place_sequences(Stream&, const AttentionShape&, const RaggedBatch&, const RaggedPlaces& places,
                     const Tensor& written, const Tensor& per_head);

// How many calls cuDNN has taken for batches of unequal lengths (-1: built without it): tests see which way was gone.
int64_t num_ragged_cudnn_calls();

}  // namespace sinter::kernels::cuda
