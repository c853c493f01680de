#include "engine/block_pool.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace sinter::engine {

BlockPool::BlockPool(int64_t num_blocks) : is_used_(static_cast<size_t>(num_blocks), 0) {
  for (int64_t b = 0; b < num_blocks; ++b) free_.push_back(static_cast<int32_t>(b));
  std::make_heap(free_.begin(), free_.end(), std::greater<>{});
}

int32_t BlockPool::allocate() {
  SINTER_CHECK(!free_.empty(), "[block_pool] all {} blocks are in use", num_blocks());
  std::pop_heap(free_.begin(), free_.end(), std::greater<>{});
  int32_t block = free_.back();
  free_.pop_back();
  is_used_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::release(int32_t block) {
  SINTER_CHECK(block >= 0 && block < num_blocks() && is_used_[static_cast<size_t>(block)],
               "[block_pool] block {} is released but not in use", block);
  is_used_[static_cast<size_t>(block)] = 0;
  free_.push_back(block);
  std::push_heap(free_.begin(), free_.end(), std::greater<>{});
}

}  // namespace sinter::engine
