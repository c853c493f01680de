#include "spec/trained_layouts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/rng.h"

namespace sinter::spec {
namespace {

ModelSpec make_model(bool has_experts) {
  ModelSpec m;
  m.family = has_experts ? Family::mixtral : Family::llama;
  m.vocab_size = 509, m.hidden = 64, m.num_layers = 7, m.num_heads = 8, m.num_kv_heads = 2, m.head_dim = 8, m.ffn = 96;
  if (has_experts) m.moe = {.num_experts = 4, .experts_per_token = 2, .ffn = 32};
  return m;
}

std::string problem_of(const ParallelSpec& p, const ModelSpec& m) {
  const std::string problem = layout_problem(p, m);
  return problem.empty() ? trained_problem(p, m) : problem;
}

// Any sizes, valid or not.
ParallelSpec draw(const base::CounterRng& rng, uint64_t& next) {
  auto below = [&](uint64_t n) { return static_cast<int64_t>(rng.bits64(next++) % n); };
  auto flag = [&] { return below(4) == 0; };
  ParallelSpec p;
  p.tp = 1 + below(4), p.pp = 1 + below(4), p.cp = 1 + below(3), p.shard = 1 + below(4), p.replica = 1 + below(2);
  p.ep = 1 + below(4), p.interleave = 1 + below(3), p.schedule = static_cast<PipelineKind>(below(4));
  p.zero = static_cast<int>(below(4)), p.sequence_parallel = flag();
  p.seq_len = 16 + 4 * below(8), p.micro_batch = 1 + below(3), p.global_batch = 1 + below(40);
  p.main_gradients = flag() ? base::DType::bf16 : base::DType::f32;
  p.recompute = static_cast<Recompute>(below(3));
  p.offload = {flag(), flag(), flag(), flag(), ""};
  return p;
}

TEST(TrainedLayouts, ARefusedLayoutComesWithANearOneThatTrainsOnAsManyRanks) {
  const base::CounterRng rng{11, 3};
  uint64_t next = 0;
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const ParallelSpec p = draw(rng, next);
    const ModelSpec m = make_model(i % 2 == 1);
    const std::optional<ParallelSpec> nearest = nearest_layout(p, m);
    ASSERT_TRUE(nearest) << describe(p);
    EXPECT_EQ(problem_of(*nearest, m), "") << describe(p) << " -> " << describe(*nearest);
    EXPECT_EQ(nearest->ranks(), p.ranks());
    EXPECT_EQ(nearest->seq_len, p.seq_len);
    if (problem_of(p, m).empty()) {
      EXPECT_EQ(describe(*nearest), describe(p));
      continue;
    }
    ++refused;
    try {
      check_trained(p, m);
      ADD_FAILURE() << describe(p) << " was not refused";
    } catch (const base::Error& e) {
      EXPECT_NE(std::string(e.what()).find("that trains: " + describe(*nearest)), std::string::npos) << e.what();
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(TrainedLayouts, TheNearestChangesNoMoreThanItMust) {
  ParallelSpec p;
  p.tp = 3, p.shard = 2, p.global_batch = 12, p.seq_len = 48;
  const ParallelSpec near = *nearest_layout(p, make_model(false));
  EXPECT_EQ(near.ranks(), 6);
  EXPECT_EQ(near.tp, 2) << describe(near);
  p = {};
  p.pp = 2, p.schedule = PipelineKind::interleaved, p.interleave = 2, p.global_batch = 4, p.seq_len = 48;
  EXPECT_EQ(describe(*nearest_layout(p, make_model(false))), "dp1 pp2 mb1") << "7 layers in 4 chunks";
}

}  // namespace
}  // namespace sinter::spec
