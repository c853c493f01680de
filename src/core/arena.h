// Planned memory for a step: lifetimes are recorded on a run without data, packed into fixed offsets, then replayed.
//
//   AllocationTrace   what a RecordingAllocator saw: every allocation's size, birth and death, in order
//   MemoryPlan        an offset for each allocation and the bytes of the whole
//   PlannedArena      an allocator that gives the n-th allocation of a step its planned place
#pragma once
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/device.h"
#include "core/tensor.h"

namespace sinter::core {

struct AllocationTrace {
  struct Entry {
    size_t bytes = 0;
    int64_t born = 0;   // event numbers: each allocate and each release advances the clock by one
    int64_t dies = -1;  // -1: alive at the end of the step
  };
  std::vector<Entry> entries;
  size_t peak_bytes = 0;  // most bytes alive at once, rounding to 256 included: no layout can need less
};

struct MemoryPlan {
  std::vector<size_t> sizes;    // of each allocation, in order
  std::vector<size_t> offsets;  // of each allocation, in order
  size_t total_bytes = 0;
};

// Packs by size, largest first, each at the lowest offset free during its life.
MemoryPlan plan_memory(const AllocationTrace& trace);

// Counts and records on the shapes device.
class RecordingAllocator : public Allocator {
 public:
  Device device() const override { return {DeviceKind::shapes, 0}; }
  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  const AllocationTrace& trace() const { return trace_; }

 private:
  AllocationTrace trace_;
  int64_t clock_ = 0;
};

// Replays a plan. Call begin_step before each step; an allocation that departs from the plan throws (a bug of ours).
class PlannedArena : public Allocator {
 public:
  PlannedArena(Allocator& backing, MemoryPlan plan);
  Device device() const override { return block_.device(); }
  void begin_step() { next_ = 0; }
  void* allocate(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  size_t total_bytes() const { return plan_.total_bytes; }
  const Tensor& block() const { return block_; }  // (total_bytes) u8: free for other uses between steps

 private:
  MemoryPlan plan_;
  Tensor block_;  // (total_bytes) u8
  size_t next_ = 0;
};

}  // namespace sinter::core
