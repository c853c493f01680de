// Rotation speeds of RoPE and its scalings, as transformers computes them.
#pragma once
#include <cstdint>
#include <vector>

#include "spec/model_spec.h"

namespace sinter::spec {

// Radians per position of each of the D/2 pairs. `sequence_length` matters for dynamic scaling only.
std::vector<float> rope_inv_freq(const RopeSpec& rope, int64_t head_dim, int64_t sequence_length);
// What cosines and sines are multiplied by (1 except for yarn).
float rope_scale(const RopeSpec& rope);

}  // namespace sinter::spec
