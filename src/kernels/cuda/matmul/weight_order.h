// The order in which a step's products of few rows read their weights. It is learned when a step runs for the first
// time and used when that is captured: what the next product begins with is then asked for while the kernels between
// the two run, which read little.
#pragma once
#include <cstddef>

#include "core/device.h"

namespace sinter::kernels::cuda {

// A stretch of a weight, on its way to the cache of the device by the last `blocks` blocks of a product.
struct NextWeights {
  const char* begin = nullptr;  // null: nothing
  int blocks = 0;
  unsigned block_bytes = 0, bytes = 0;  // of each but the last, in all: multiples of 16
};

// Tells that a product of `blocks` blocks reads this weight now; returns what the product after it begins with. Nothing
// outside of a capture: a weight that was next before may be gone. Without a weight the order ends, as behind a step's
// last product: what comes next may be another model's.
NextWeights next_weights(core::Stream& stream, const void* weight, size_t bytes, int blocks);

}  // namespace sinter::kernels::cuda
