// Switches of serving's kernels, read from the environment once.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/cuda_kernels.h"

namespace sinter::kernels::cuda {

// How prompts read the cache (attention/page_attention.h).
enum class PageAttention {
  none,      // 0: by our flash kernel
  gathered,  // 1, by default
  direct,    // 2: pages as the cache has them
};

struct ServingOptions {
  PageAttention pages = PageAttention::gathered;  // SINTER_CUDA_PAGES
  // SINTER_CUDA_FP8_ROWS=N: products of so many rows or more with weights in fp8 round their rows too; 0: none do.
  int64_t fp8_rows = 17;
  size_t prefetched_bytes = size_t{16} << 20;  // SINTER_CUDA_PREFETCH=MIB: of the next weight (matmul/weight_order.h)
};
const ServingOptions& serving_options();

// A slot of scratch() for work that is never captured: its memory goes back when it grows.
inline constexpr Scratch kPageScratch = static_cast<Scratch>(static_cast<int>(Scratch::zeros) + 1);

}  // namespace sinter::kernels::cuda
