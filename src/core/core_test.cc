#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "base/rng.h"
#include "core/arena.h"
#include "core/graph.h"
#include "core/tensor.h"

namespace sinter::core {
namespace {

TEST(Tensor, ReturnsItsMemory) {
  Allocator& allocator = runtime({}).allocator();
  size_t before = allocator.stats().current_bytes;
  {
    Tensor t(allocator, {3, 5}, DType::f32);
    Tensor slice = t.slice(1, 2);
    EXPECT_EQ(slice.data<float>(), t.data<float>() + 5);
    EXPECT_EQ(allocator.stats().current_bytes, before + 60);
  }
  EXPECT_EQ(allocator.stats().current_bytes, before);
}

// Random lifetimes recorded, planned and replayed: what lives together never overlaps.
TEST(MemoryPlan, LiveAllocationsNeverOverlap) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    base::CounterRng rng{seed, 1};
    RecordingAllocator recorder;
    std::vector<std::unique_ptr<Storage>> live;
    auto drive = [&](Allocator& allocator, auto on_allocate) {
      live.clear();
      for (uint64_t i = 0; i < 200; ++i) {
        if (rng.uniform(2 * i) < 0.55f || live.empty()) {
          live.push_back(std::make_unique<Storage>(allocator, 1 + rng.bits(2 * i + 1) % 5000));
          on_allocate(*live.back(), i);
        } else {
          live.erase(live.begin() + rng.bits(2 * i + 1) % live.size());
        }
      }
    };
    drive(recorder, [](Storage&, uint64_t) {});
    live.clear();
    MemoryPlan plan = plan_memory(recorder.trace());
    EXPECT_GE(plan.total_bytes, recorder.trace().peak_bytes);
    EXPECT_LE(plan.total_bytes, recorder.trace().peak_bytes * 13 / 10);
    PlannedArena arena(runtime({}).allocator(), plan);
    for (int step = 0; step < 2; ++step) {
      arena.begin_step();
      drive(arena, [&](Storage& s, uint64_t i) { std::memset(s.data(), static_cast<int>(i), s.bytes()); });
      for (auto& s : live) {
        const char* bytes = static_cast<const char*>(s->data());
        for (size_t b = 1; b < s->bytes(); ++b) ASSERT_EQ(bytes[b], bytes[0]);
      }
      live.clear();
    }
  }
}

TEST(PlannedArena, RefusesAStepThatDiffersFromItsPlan) {
  RecordingAllocator recorder;
  { Storage s(recorder, 100); }
  PlannedArena arena(runtime({}).allocator(), plan_memory(recorder.trace()));
  arena.begin_step();
  EXPECT_THROW(arena.allocate(200), base::Error);
}

TEST(Graph, OnTheCpuAndOnShapesReplayCallsTheWork) {
  for (DeviceKind kind : {DeviceKind::cpu, DeviceKind::shapes}) {
    int calls = 0;
    std::unique_ptr<Graph> graph = capture(runtime({kind, 0}).stream(), [&] { ++calls; });
    EXPECT_EQ(calls, 0) << "nothing runs before it is replayed";
    graph->replay();
    graph->replay();
    EXPECT_EQ(calls, 2);
  }
  EXPECT_FALSE(has_captured());
}

TEST(RepeatedWork, RunsOnceEachTimeAndIsReplayedFromTheSecondOn) {
  Stream& stream = runtime({}).stream();
  RepeatedWork work;
  int calls = 0;
  for (int i = 1; i <= 4; ++i) {
    work.run(stream, [&] { ++calls; });
    EXPECT_EQ(calls, i);
    EXPECT_EQ(work.num_replays(), i - 1);
  }
}

TEST(RepeatedWork, WorkThatThrowsTheFirstTimeIsNotTakenAsDone) {
  Stream& stream = runtime({}).stream();
  RepeatedWork work;
  EXPECT_THROW(work.run(stream, [] { base::fail("broken"); }), base::Error);
  int calls = 0;
  work.run(stream, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(work.num_replays(), 0);
}

TEST(Device, NamesParseAndErrorsSaySo) {
  EXPECT_EQ(parse_device("cuda:3"), (Device{DeviceKind::cuda, 3}));
  EXPECT_THROW(parse_device("gpu"), base::UsageError);
  EXPECT_THROW(parse_device("cuda:x"), base::UsageError);
}

}  // namespace
}  // namespace sinter::core
