// Planned memory for a step: lifetimes are recorded on a run without data, packed into fixed offsets, then replayed.
//
//   AllocationTrace   what a RecordingAllocator saw: every allocation's size, birth and death, in order
//   MemoryPlan        an offset for each allocation and the bytes of the whole
//   PlannedArena      an allocator that gives the n-th allocation of a step its planned place
//   ArenaSet          one block in which plans of several kinds of step take turns
//   PassPlan          a plan for passes that overlap (pipelines): what lives from one part to the next, once for each
//   pass
//                     in flight, and what does not, shared by all
//   PassArena         an allocator that replays it
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
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
  int64_t clock() const { return clock_; }  // of the next event

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

// One block for all kinds of step that never run at once. A kind is (bucket of sizes, what is done with it).
class ArenaSet {
 public:
  ArenaSet(Allocator& backing, size_t bytes);
  using Kind = std::pair<int64_t, int64_t>;
  // The arena of a kind, planned at its first use. Throws base::Error when the plan needs more than the block.
  PlannedArena& get(Kind kind, const std::function<MemoryPlan()>& make_plan);
  size_t bytes() const { return block_.bytes(); }
  size_t num_plans() const { return arenas_.size(); }

 private:
  class Lender;
  Tensor block_;  // (bytes) u8
  std::unique_ptr<Lender> lender_;
  std::map<Kind, std::unique_ptr<PlannedArena>> arenas_;

 public:
  ~ArenaSet();
};

// Of one forward and its backward, when other passes run between them.
struct PassPlan {
  std::vector<size_t> sizes, offsets;  // of each allocation, in order; in its own part
  std::vector<bool> is_kept;           // lives from one part of the pass into the next
  size_t num_forward = 0;              // allocations of the forward
  size_t num_backward = 0;             // of the backward, without those of weights' gradients where these come later
  size_t kept_bytes = 0, transient_bytes = 0;
  size_t bytes(int64_t in_flight) const { return static_cast<size_t>(in_flight) * kept_bytes + transient_bytes; }
};
// `forward_end`: RecordingAllocator::clock() between forward and backward; `backward_end`: between the backward and
// that of the weights, where other passes may come between these too.
PassPlan plan_pass(const AllocationTrace& trace, int64_t forward_end,
                   int64_t backward_end = std::numeric_limits<int64_t>::max());

// Replays a pass plan for up to `in_flight` passes, each in a slot of its own. Only one forward or backward runs at a
// time.
class PassArena : public Allocator {
 public:
  PassArena(Allocator& backing, PassPlan plan, int64_t in_flight);
  Device device() const override { return block_.device(); }
  // The allocations that follow belong to this slot's pass: from its beginning, or from its backward on.
  void begin_forward(int64_t slot);
  void begin_backward(int64_t slot);
  void begin_weights(int64_t slot);
  void* allocate(size_t bytes) override;
  void release(void*, size_t bytes) override { count_release(bytes); }
  size_t total_bytes() const { return block_.bytes(); }

 private:
  PassPlan plan_;
  int64_t in_flight_;
  Tensor block_;  // the kept parts of all slots, then the transient part
  int64_t slot_ = 0;
  size_t next_ = 0;
};

}  // namespace sinter::core
