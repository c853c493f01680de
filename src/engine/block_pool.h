// The blocks of a paged KV cache: who owns which.
#pragma once
#include <cstdint>
#include <vector>

namespace sinter::engine {

// A fixed number of blocks, handed out lowest first. Not thread-safe: one owner.
class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(is_used_.size()); }
  // Throws base::Error when none is free: callers ask num_free() first.
  int32_t allocate();
  // Throws base::Error on a block that is not out.
  void release(int32_t block);

 private:
  std::vector<int32_t> free_;  // a heap with the lowest on top
  std::vector<uint8_t> is_used_;
};

}  // namespace sinter::engine
