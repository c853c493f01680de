#include "core/arena.h"

#include <algorithm>
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

}  // namespace sinter::core
