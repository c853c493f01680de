// What the argument structs of all kernels are written with.
#pragma once
#include <cstdint>

#include "core/ragged_batch.h"
#include "core/tensor.h"
#include "core/weight_view.h"

namespace sinter::kernels {

using core::KvLayer;
using core::RaggedBatch;
using core::Stream;
using core::Tensor;
using core::WeightView;

// Identifies the random numbers of one use: see base::CounterRng.
struct RandomKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
};

}  // namespace sinter::kernels
