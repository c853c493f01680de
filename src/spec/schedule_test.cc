#include "spec/schedule.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "spec/parallel_spec.h"

namespace sinter::spec {
namespace {

std::vector<PipelineShape> all_shapes() {
  std::vector<PipelineShape> shapes;
  for (int64_t pp : {1, 2, 3, 4, 8}) {
    for (int64_t m : {1, 2, 4, 7, 8, 24}) {
      shapes.push_back({PipelineKind::gpipe, pp, 1, m});
      shapes.push_back({PipelineKind::one_f_one_b, pp, 1, m});
      shapes.push_back({PipelineKind::zero_bubble, pp, 1, m});
      for (int64_t v : {1, 2, 3}) {
        if (m % pp == 0) shapes.push_back({PipelineKind::interleaved, pp, v, m});
      }
    }
  }
  return shapes;
}

// Runs the lists with blocking receives and buffered sends; true when every list comes to its end.
bool runs_to_end(const PipelineShape& shape, int64_t* peak_in_flight) {
  std::vector<std::vector<Action>> lists;
  for (int64_t rank = 0; rank < shape.pp; ++rank) lists.push_back(make_schedule(shape, rank));
  std::set<std::tuple<bool, int64_t, int32_t>> arrived;  // (gradient, receiving virtual stage, micro-batch)
  std::vector<size_t> next(lists.size(), 0);
  bool moved = true;
  while (moved) {
    moved = false;
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      int64_t alive = 0;
      while (next[rank] < lists[rank].size()) {
        const Action& a = lists[rank][next[rank]];
        int64_t stage = a.chunk * shape.pp + static_cast<int64_t>(rank);
        if (a.kind == ActionKind::receive_activation && !arrived.count({false, stage, a.micro_batch})) break;
        if (a.kind == ActionKind::receive_gradient && !arrived.count({true, stage, a.micro_batch})) break;
        if (a.kind == ActionKind::send_activation) arrived.insert({false, stage + 1, a.micro_batch});
        if (a.kind == ActionKind::send_gradient) arrived.insert({true, stage - 1, a.micro_batch});
        ++next[rank];
        moved = true;
      }
      for (const Action& a : lists[rank]) {
        if (a.kind == ActionKind::forward) peak_in_flight[rank] = std::max(peak_in_flight[rank], ++alive);
        if (a.kind == (splits_backward(shape) ? ActionKind::backward_weights : ActionKind::backward)) --alive;
      }
    }
  }
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (next[rank] != lists[rank].size()) return false;
  }
  return true;
}

TEST(Schedule, EveryListRunsToItsEndAndHoldsWhatIsPromised) {
  for (const PipelineShape& shape : all_shapes()) {
    std::vector<int64_t> peak(static_cast<size_t>(shape.pp), 0);
    ASSERT_TRUE(runs_to_end(shape, peak.data()))
        << pipeline_name(shape.kind) << " pp " << shape.pp << " v " << shape.interleave << " m " << shape.micro_batches;
    for (int64_t rank = 0; rank < shape.pp; ++rank) {
      EXPECT_EQ(peak[static_cast<size_t>(rank)], max_in_flight(shape, rank));
    }
  }
}

TEST(Schedule, EveryMicroBatchPassesEveryChunkOnceEachWay) {
  for (const PipelineShape& shape : all_shapes()) {
    for (int64_t rank = 0; rank < shape.pp; ++rank) {
      std::map<std::tuple<int32_t, int32_t>, int> forwards, backwards;
      for (const Action& a : make_schedule(shape, rank)) {
        if (a.kind == ActionKind::forward) ++forwards[{a.micro_batch, a.chunk}];
        if (a.kind == ActionKind::backward) {
          EXPECT_EQ((forwards[{a.micro_batch, a.chunk}]), 1) << "backward before its forward";
          ++backwards[{a.micro_batch, a.chunk}];
        }
      }
      ASSERT_EQ(static_cast<int64_t>(forwards.size()), shape.micro_batches * shape.interleave);
      EXPECT_EQ(forwards, backwards);
    }
  }
}

TEST(Schedule, OneForwardOneBackwardListIsTheKnownOne) {
  std::string text;
  for (const Action& a : make_schedule({PipelineKind::one_f_one_b, 4, 1, 5}, 2)) {
    if (a.kind == ActionKind::forward) text += "F" + std::to_string(a.micro_batch);
    if (a.kind == ActionKind::backward) text += "B" + std::to_string(a.micro_batch);
  }
  EXPECT_EQ(text, "F0F1B0F2B1F3B2F4B3B4");
}

TEST(Schedule, InterleavingMultipliesTheTrafficByTheNumberOfChunks) {
  auto sends = [](const PipelineShape& shape) {
    int64_t count = 0;
    for (int64_t rank = 0; rank < shape.pp; ++rank) {
      for (const Action& a : make_schedule(shape, rank)) count += a.kind == ActionKind::send_activation;
    }
    return count;
  };
  // One pipeline pass crosses pp v - 1 borders: v times the traffic, plus the wrap-around of v - 1.
  EXPECT_EQ(sends({PipelineKind::one_f_one_b, 4, 1, 8}), 8 * 3);
  EXPECT_EQ(sends({PipelineKind::interleaved, 4, 3, 8}), 8 * 11);
}

TEST(Schedule, InterleavedRefusesMicroBatchesThatDoNotFit) {
  EXPECT_THROW(make_schedule({PipelineKind::interleaved, 4, 2, 6}, 0), base::Error);
  EXPECT_THROW(make_schedule({PipelineKind::one_f_one_b, 4, 2, 8}, 0), base::Error);
  EXPECT_THROW(make_schedule({PipelineKind::one_f_one_b, 4, 1, 8}, 4), base::Error);
}

TEST(Schedule, StagesShareLayersEvenly) {
  int64_t next = 0;
  for (int64_t stage = 0; stage < 4; ++stage) {
    LayerRange range = layers_of_stage(30, 4, stage);
    EXPECT_EQ(range.begin, next);
    EXPECT_EQ(range.count, stage < 2 ? 8 : 7);
    next += range.count;
  }
  EXPECT_EQ(next, 30);
}

ModelSpec small_model() {
  ModelSpec model;
  model.vocab_size = 1000;
  model.hidden = 96;
  model.num_layers = 12;
  model.num_heads = 12;
  model.num_kv_heads = 4;
  model.head_dim = 8;
  model.ffn = 256;
  model.max_positions = 128;
  return model;
}

TEST(ParallelSpec, ProblemsNameTheNearestValidChoice) {
  ParallelSpec p;
  p.seq_len = 128;
  EXPECT_EQ(layout_problem(p, small_model()), "");
  p.tp = 5;
  EXPECT_NE(layout_problem(p, small_model()).find("nearest that does is 4"), std::string::npos);
  p.tp = 1;
  p.pp = 24;
  EXPECT_NE(layout_problem(p, small_model()).find("at most pp 12"), std::string::npos);
  p.pp = 1;
  p.shard = 4;
  p.global_batch = 6;
  EXPECT_NE(layout_problem(p, small_model()).find("nearest below is 4"), std::string::npos);
  p.global_batch = 2;
  EXPECT_NE(layout_problem(p, small_model()).find("nearest is 4"), std::string::npos);
  p.shard = 0;
  EXPECT_NE(layout_problem(p, small_model()).find("at least 1"), std::string::npos);
  p.shard = 1;
  p.ep = 2;
  EXPECT_NE(layout_problem(p, small_model()).find("dense"), std::string::npos);
}

TEST(ParallelSpec, NamesAreReadBack) {
  for (PipelineKind kind : {PipelineKind::gpipe, PipelineKind::one_f_one_b, PipelineKind::interleaved}) {
    EXPECT_EQ(parse_pipeline(pipeline_name(kind)), kind);
  }
  EXPECT_EQ(parse_recompute("selective"), Recompute::selective);
  EXPECT_THROW(parse_pipeline("1b1f"), base::Error);
}

}  // namespace
}  // namespace sinter::spec
