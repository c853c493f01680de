// NEFTune: uniform noise on the embeddings of what is learned from.
#pragma once
#include <cstdint>

#include "tune/data/pack.h"

namespace sinter::tune {

struct EmbeddingNoise {
  double alpha = 0;  // 0: none
  int64_t hidden = 0;
  uint64_t seed = 0;
};

// Noise of every token of the batch's samples, within alpha / sqrt(tokens of its sample x hidden); none for padding.
// What a token draws depends on seed, step, sample and place in the sample alone: not on the row it is packed into, the
// micro-batch or the rank.
void add_noise(TuneBatch& batch, const EmbeddingNoise& noise, int64_t step);

}  // namespace sinter::tune
