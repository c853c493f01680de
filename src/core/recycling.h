// Memory that is given out again: a step like one before it takes nothing from the device.
#pragma once
#include <cstddef>
#include <map>
#include <vector>

#include "core/device.h"

namespace sinter::core {

// Keeps what is released for the next allocation of about that size (at most an eighth larger). What lies unused is at
// most about as much as was ever in use at once; beyond that all of it goes back. Not thread-safe.
class RecyclingAllocator : public Allocator {
 public:
  explicit RecyclingAllocator(Allocator& backing) : backing_(backing) {}
  ~RecyclingAllocator() override { trim(); }
  RecyclingAllocator(const RecyclingAllocator&) = delete;
  RecyclingAllocator& operator=(const RecyclingAllocator&) = delete;

  Device device() const override { return backing_.device(); }
  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  void trim();                                     // gives back what lies unused
  size_t num_taken() const { return num_taken_; }  // allocations that the backing had to serve
  size_t unused_bytes() const { return unused_bytes_; }

 private:
  Allocator& backing_;
  std::map<size_t, std::vector<void*>> unused_;  // by size
  size_t unused_bytes_ = 0, num_taken_ = 0;
};

}  // namespace sinter::core
