#include "core/arena.h"

#include <algorithm>
#include <map>
#include <numeric>

namespace sinter::core {
namespace {

size_t aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

void* RecordingAllocator::allocate(size_t bytes) {
  count_allocate(aligned(bytes));
  trace_.entries.push_back({bytes, clock_++, -1});
  trace_.peak_bytes = stats_.peak_bytes;
  // A handle that only release() understands: tensors on the shapes device are never read.
  return reinterpret_cast<void*>(trace_.entries.size());
}

void RecordingAllocator::release(void* data, size_t bytes) {
  count_release(aligned(bytes));
  trace_.entries[reinterpret_cast<size_t>(data) - 1].dies = clock_++;
}

MemoryPlan plan_memory(const AllocationTrace& trace) {
  const size_t count = trace.entries.size();
  MemoryPlan plan;
  plan.offsets.assign(count, 0);
  for (const auto& e : trace.entries) plan.sizes.push_back(e.bytes);
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return trace.entries[a].bytes > trace.entries[b].bytes; });
  auto death = [&](size_t i) { return trace.entries[i].dies < 0 ? INT64_MAX : trace.entries[i].dies; };
  std::vector<size_t> placed;  // sorted by offset
  for (size_t i : order) {
    size_t need = aligned(trace.entries[i].bytes), offset = 0;
    for (size_t j : placed) {
      bool overlaps = trace.entries[j].born < death(i) && trace.entries[i].born < death(j);
      if (!overlaps) continue;
      if (plan.offsets[j] >= offset + need) break;  // fits in the gap before j
      offset = std::max(offset, plan.offsets[j] + aligned(plan.sizes[j]));
    }
    plan.offsets[i] = offset;
    plan.total_bytes = std::max(plan.total_bytes, offset + need);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), i,
                                   [&](size_t a, size_t b) { return plan.offsets[a] < plan.offsets[b]; }),
                  i);
  }
  return plan;
}

PlannedArena::PlannedArena(Allocator& backing, MemoryPlan plan)
    : plan_(std::move(plan)),
      block_(backing, {static_cast<int64_t>(std::max<size_t>(plan_.total_bytes, 256))}, DType::u8) {}

void* PlannedArena::allocate(size_t bytes) {
  SINTER_CHECK(
      next_ < plan_.sizes.size() && plan_.sizes[next_] == bytes,
      "[arena] allocation {} of the step is {} bytes, but the memory plan has {}: the step differs from its plan",
      next_, bytes, next_ < plan_.sizes.size() ? std::to_string(plan_.sizes[next_]) : "no such allocation");
  count_allocate(bytes);
  return block_.data<char>() + plan_.offsets[next_++];
}

void PlannedArena::release(void*, size_t bytes) { count_release(bytes); }

// Lends the block to every plan.
class ArenaSet::Lender : public Allocator {
 public:
  explicit Lender(const Tensor& block) : block_(block) {}
  Device device() const override { return block_.device(); }
  void* allocate(size_t bytes) override {
    SINTER_CHECK(bytes <= block_.bytes(), "[arena] a plan of {} bytes in a block of {}", bytes, block_.bytes());
    return block_.raw();
  }
  void release(void*, size_t) override {}

 private:
  const Tensor& block_;
};

ArenaSet::ArenaSet(Allocator& backing, size_t bytes)
    : block_(backing, {static_cast<int64_t>(std::max<size_t>(bytes, 256))}, DType::u8),
      lender_(std::make_unique<Lender>(block_)) {}
ArenaSet::~ArenaSet() = default;

PlannedArena& ArenaSet::get(Kind kind, const std::function<MemoryPlan()>& make_plan) {
  std::unique_ptr<PlannedArena>& arena = arenas_[kind];
  if (!arena) {
    try {
      arena = std::make_unique<PlannedArena>(*lender_, make_plan());
    } catch (...) {
      arenas_.erase(kind);
      throw;
    }
  }
  return *arena;
}

PassPlan plan_pass(const AllocationTrace& trace, int64_t forward_end, int64_t backward_end) {
  PassPlan plan;
  AllocationTrace kept, forward, backward, weights;
  std::vector<AllocationTrace*> part_of;
  for (const auto& entry : trace.entries) {
    const bool is_forward = entry.born < forward_end;
    const bool is_backward = !is_forward && entry.born < backward_end;
    const int64_t end = is_forward ? forward_end : backward_end;
    const bool is_kept = (is_forward || (is_backward && backward_end != std::numeric_limits<int64_t>::max())) &&
                         (entry.dies < 0 || entry.dies >= end);
    part_of.push_back(is_kept ? &kept : is_forward ? &forward : is_backward ? &backward : &weights);
    part_of.back()->entries.push_back(entry);
    plan.sizes.push_back(entry.bytes);
    plan.is_kept.push_back(is_kept);
    plan.num_forward += is_forward;
    plan.num_backward += is_backward;
  }
  std::map<AllocationTrace*, MemoryPlan> plans;
  std::map<AllocationTrace*, size_t> next;
  for (AllocationTrace* part : {&kept, &forward, &backward, &weights}) plans[part] = plan_memory(*part);
  for (AllocationTrace* part : part_of) plan.offsets.push_back(plans[part].offsets[next[part]++]);
  plan.kept_bytes = plans[&kept].total_bytes;
  plan.transient_bytes =
      std::max({plans[&forward].total_bytes, plans[&backward].total_bytes, plans[&weights].total_bytes});
  return plan;
}

PassArena::PassArena(Allocator& backing, PassPlan plan, int64_t in_flight)
    : plan_(std::move(plan)),
      in_flight_(in_flight),
      block_(backing, {static_cast<int64_t>(std::max<size_t>(plan_.bytes(in_flight), 256))}, DType::u8) {}

void PassArena::begin_forward(int64_t slot) {
  SINTER_CHECK(slot >= 0 && slot < in_flight_, "[arena] pass {} of {} in flight", slot, in_flight_);
  slot_ = slot, next_ = 0;
}

void PassArena::begin_backward(int64_t slot) {
  begin_forward(slot);
  next_ = plan_.num_forward;
}

void PassArena::begin_weights(int64_t slot) {
  begin_forward(slot);
  next_ = plan_.num_forward + plan_.num_backward;
}

void* PassArena::allocate(size_t bytes) {
  SINTER_CHECK(next_ < plan_.sizes.size() && plan_.sizes[next_] == bytes,
               "[arena] allocation {} of a pass is {} bytes, but the memory plan has {}", next_, bytes,
               next_ < plan_.sizes.size() ? std::to_string(plan_.sizes[next_]) : "no such allocation");
  count_allocate(bytes);
  const size_t part = plan_.is_kept[next_] ? static_cast<size_t>(slot_) * plan_.kept_bytes
                                           : static_cast<size_t>(in_flight_) * plan_.kept_bytes;
  return block_.data<char>() + part + plan_.offsets[next_++];
}

}  // namespace sinter::core
