// Random numbers in bulk, on the host.
#pragma once
#include <cstdint>
#include <span>

#include "base/rng.h"

namespace sinter::kernels {

// out[i] = scale * rng.normal(first + i), bit for bit, several times as fast. In the calling thread.
void draw_normal(const base::CounterRng& rng, uint64_t first, float scale, std::span<float> out);

}  // namespace sinter::kernels
