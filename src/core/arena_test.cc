// Arenas for several kinds of step, and for passes that overlap.
#include "core/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "core/recycling.h"

namespace sinter::core {
namespace {

Allocator& host() { return runtime({}).allocator(); }

TEST(ArenaSet, KindsTakeTurnsInOneBlock) {
  ArenaSet set(host(), 4096);
  int planned = 0;
  auto plan = [&](size_t bytes) {
    return [&planned, bytes] {
      ++planned;
      RecordingAllocator recorder;
      Tensor t(recorder, {static_cast<int64_t>(bytes)}, DType::u8);
      return plan_memory(recorder.trace());
    };
  };
  PlannedArena& small = set.get({1, 0}, plan(100));
  PlannedArena& large = set.get({2, 0}, plan(4096));
  EXPECT_EQ(&set.get({1, 0}, plan(100)), &small);
  EXPECT_EQ(planned, 2);
  small.begin_step(), large.begin_step();
  EXPECT_EQ(Tensor(small, {100}, DType::u8).raw(), Tensor(large, {4096}, DType::u8).raw());
  EXPECT_THROW(set.get({3, 0}, plan(5000)), base::Error);
  EXPECT_EQ(set.num_plans(), 2u);
}

// A pass that keeps two tensors for its backward and uses scratch in both directions.
struct Pass {
  Tensor kept1, kept2;
  void forward(Allocator& memory) {
    kept1 = Tensor(memory, {1000}, DType::u8);
    Tensor scratch(memory, {3000}, DType::u8);
    kept2 = Tensor(memory, {500}, DType::u8);
    if (memory.device().kind != DeviceKind::cpu) return;
    for (int i = 0; i < 3000; ++i) scratch.data<uint8_t>()[i] = 0xee;
  }
  void backward(Allocator& memory) {
    Tensor gradient(memory, {2000}, DType::u8);
    if (memory.device().kind == DeviceKind::cpu) std::fill_n(gradient.data<uint8_t>(), 2000, uint8_t{0xdd});
    kept1 = {}, kept2 = {};
  }
  void fill(uint8_t value) {
    std::fill_n(kept1.data<uint8_t>(), 1000, value);
    std::fill_n(kept2.data<uint8_t>(), 500, value);
  }
  bool holds(uint8_t value) const {
    return std::all_of(kept1.data<uint8_t>(), kept1.data<uint8_t>() + 1000, [&](uint8_t v) { return v == value; }) &&
           std::all_of(kept2.data<uint8_t>(), kept2.data<uint8_t>() + 500, [&](uint8_t v) { return v == value; });
  }
};

TEST(PassArena, PassesInFlightKeepTheirOwnAndShareTheRest) {
  RecordingAllocator recorder;
  Pass shape;
  shape.forward(recorder);
  const int64_t forward_end = recorder.clock();
  shape.backward(recorder);
  const PassPlan plan = plan_pass(recorder.trace(), forward_end);
  EXPECT_EQ(plan.kept_bytes, 1024u + 512u);
  EXPECT_EQ(plan.transient_bytes, 3072u);
  EXPECT_EQ(plan.bytes(3), 3 * 1536u + 3072u);
  PassArena arena(host(), plan, 3);
  Pass passes[3];
  for (int round = 0; round < 2; ++round) {
    for (int64_t slot = 0; slot < 3; ++slot) {
      arena.begin_forward(slot);
      passes[slot].forward(arena);
      passes[slot].fill(static_cast<uint8_t>(slot + 1));
    }
    for (int64_t slot : {1, 0, 2}) {
      EXPECT_TRUE(passes[slot].holds(static_cast<uint8_t>(slot + 1)));
      arena.begin_backward(slot);
      passes[slot].backward(arena);
    }
  }
  EXPECT_THROW(arena.begin_forward(3), base::Error);
}

TEST(Recycling, TakesNothingForAStepLikeOneBefore) {
  Allocator& backing = runtime({}).allocator();
  const size_t before = backing.stats().current_bytes;
  {
    RecyclingAllocator memory(backing);
    auto step = [&](size_t scale) {
      std::vector<Tensor> alive;
      for (size_t bytes : {300, 5000, 70000, 300, 1})
        alive.emplace_back(memory, base::Shape{static_cast<int64_t>(bytes * scale)}, DType::u8);
      for (size_t i = 0; i < alive.size(); ++i) {  // two at the same place would change each other
        std::memset(alive[i].raw(), static_cast<int>(i), alive[i].bytes());
      }
      for (size_t i = 0; i < alive.size(); ++i) {
        const auto* bytes = static_cast<const unsigned char*>(alive[i].raw());
        EXPECT_EQ(std::count(bytes, bytes + alive[i].bytes(), i), static_cast<int64_t>(alive[i].bytes()));
      }
    };
    step(1);
    const size_t taken = memory.num_taken();
    for (int i = 0; i < 10; ++i) step(1);
    EXPECT_EQ(memory.num_taken(), taken);
    for (size_t scale = 1; scale < 200; ++scale) step(scale);  // other sizes do not pile up
    EXPECT_LE(memory.unused_bytes(), 3 * memory.stats().peak_bytes);
    EXPECT_EQ(memory.stats().current_bytes, 0u);
    memory.trim();
    EXPECT_EQ(memory.unused_bytes(), 0u);
  }
  EXPECT_EQ(backing.stats().current_bytes, before);
}

}  // namespace
}  // namespace sinter::core
