#include "tune/data/embedding_noise.h"

#include <cmath>

#include "base/rng.h"

namespace sinter::tune {
namespace {

constexpr uint64_t kNoiseStream = 0x4e454654756e65;  // apart from other random numbers of the same seed

}  // namespace

void add_noise(TuneBatch& batch, const EmbeddingNoise& noise, int64_t step) {
  const auto tokens = static_cast<size_t>(batch.num_tokens());
  batch.noise_streams.assign(tokens, 0);
  batch.noise_scales.assign(tokens, 0);
  const uint64_t of_step = base::mix_bits(base::mix_bits(kNoiseStream, noise.seed), static_cast<uint64_t>(step));
  for (size_t s = 0; s < batch.samples.size(); ++s) {
    const auto begin = static_cast<size_t>(batch.offsets[s]), end = static_cast<size_t>(batch.offsets[s + 1]);
    const double numbers = static_cast<double>(end - begin) * static_cast<double>(noise.hidden);
    const uint64_t of_sample = base::mix_bits(of_step, static_cast<uint64_t>(batch.samples[s]));
    for (size_t t = begin; t < end; ++t) {
      batch.noise_streams[t] = base::mix_bits(of_sample, t - begin);
      batch.noise_scales[t] = static_cast<float>(noise.alpha / std::sqrt(numbers));
    }
  }
}

}  // namespace sinter::tune
