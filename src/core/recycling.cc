#include "core/recycling.h"

#include <algorithm>
#include <bit>

namespace sinter::core {
namespace {

// Eight sizes between a power of two and the next.
size_t size_class(size_t bytes) {
  constexpr size_t kLeast = 256;
  if (bytes <= kLeast) return kLeast;
  const size_t step = std::max(kLeast, std::bit_floor(bytes) / 8);
  return (bytes + step - 1) / step * step;
}

}  // namespace

void* RecyclingAllocator::allocate(size_t bytes) {
  const size_t size = size_class(bytes);
  void* data = nullptr;
  if (std::vector<void*>& blocks = unused_[size]; !blocks.empty()) {
    data = blocks.back();
    blocks.pop_back();
    unused_bytes_ -= size;
  } else {
    if (unused_bytes_ > stats_.peak_bytes) trim();
    data = backing_.allocate(size);
    ++num_taken_;
  }
  count_allocate(size);
  return data;
}

void RecyclingAllocator::release(void* data, size_t bytes) {
  const size_t size = size_class(bytes);
  unused_[size].push_back(data);
  unused_bytes_ += size;
  count_release(size);
}

void RecyclingAllocator::trim() {
  for (auto& [size, blocks] : unused_) {
    for (void* data : blocks) backing_.release(data, size);
    blocks.clear();
  }
  unused_bytes_ = 0;
}

}  // namespace sinter::core
