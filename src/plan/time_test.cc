#include "plan/time.h"

#include <gtest/gtest.h>

#include "plan/check/points.h"
#include "plan/models.h"

namespace sinter::plan {
namespace {

const HardwareTable& hardware() {
  static const HardwareTable table = load_hardware();
  return table;
}

struct Gpt3 {
  ModelShape model = make_model_shape(gpt_spec(96, 12288, 96, 51200, 2048));
  Cluster cluster = parse_cluster(hardware(), "64xA100-80GB");
  spec::ParallelSpec p;
  Software software = find_software("megatron-2021");
  Gpt3() {
    p.tp = 8;
    p.pp = 8;
    p.seq_len = 2048;
    p.global_batch = 64;
  }
  TimeModel::LayerTime layer() const {
    Efficiency e = find_efficiency(cluster.device, software.name);
    return TimeModel(model, p, cluster, software, e).layer(0);
  }
  StepEstimate step() const {
    return plan_step(model, p, cluster, software, find_efficiency(cluster.device, software.name));
  }
};

// Korthikanti et al. 2022 measured 39 % for the 22B model and 36 % for the largest.
TEST(Time, FullRecomputeAddsThirtyToFortyPercentOfGpt3) {
  Gpt3 gpt;
  TimeModel::LayerTime plain = gpt.layer();
  gpt.p.recompute = spec::Recompute::full;
  TimeModel::LayerTime again = gpt.layer();
  double more = (again.forward + again.backward) / (plain.forward + plain.backward) - 1;
  EXPECT_GE(more, 0.30);
  EXPECT_LE(more, 0.40);
  EXPECT_EQ(again.forward, plain.forward);
}

TEST(Time, SelectiveRecomputeCostsAFewPercentOfGpt3) {
  Gpt3 gpt;
  TimeModel::LayerTime plain = gpt.layer();
  gpt.p.recompute = spec::Recompute::selective;
  TimeModel::LayerTime again = gpt.layer();
  double more = (again.forward + again.backward) / (plain.forward + plain.backward) - 1;
  EXPECT_GT(more, 0);
  EXPECT_LT(more, 0.08);
}

TEST(Time, TheStepIsTheSumOfItsCauses) {
  Gpt3 gpt;
  gpt.p.recompute = spec::Recompute::full;
  StepEstimate plan = gpt.step();
  EXPECT_DOUBLE_EQ(plan.seconds, plan.time.total());
  double sum = 0;
  for (double part : part_values(plan.time)) {
    EXPECT_GE(part, 0);
    sum += part;
  }
  EXPECT_DOUBLE_EQ(plan.seconds, sum);
  EXPECT_GT(plan.hfu, plan.mfu);
}

TEST(Time, TheBubbleIsTheClosedForm) {
  Gpt3 gpt;
  gpt.p.pp = 8;
  gpt.p.global_batch = 64;
  StepEstimate plan = gpt.step();
  // Seven of eight stages are alike; the last one has the head. The bubble is the others' time for one micro-batch.
  double one =
      (plan.time.matmul + plan.time.attention + plan.time.elementwise + plan.time.loss + plan.time.tensor_parallel) /
      64;
  EXPECT_LE(plan.time.bubble, 7 * one * 1.0001);
  EXPECT_GE(plan.time.bubble, 7 * one * 0.95);
  gpt.p.schedule = spec::PipelineKind::interleaved;
  gpt.p.interleave = 3;
  EXPECT_NEAR(gpt.step().time.bubble / plan.time.bubble, 1.0 / 3, 0.03);
}

TEST(Time, ModelFlopsAreSixPerMatmulParameterPlusCausalAttention) {
  spec::ModelSpec spec = resolve_model("llama-3.1-8b").spec;
  ModelShape model = make_model_shape(spec);
  spec::ParallelSpec p;
  p.seq_len = 8192;
  Cluster cluster = parse_cluster(hardware(), "1xH100");
  StepEstimate plan = plan_step(model, p, cluster, find_software("sinter"), find_efficiency(cluster.device, "sinter"));
  double matrices = 8030261248.0 - 128256.0 * 4096 - 65 * 4096;  // without the input table and the norms
  double attention = 6.0 * 32 * 4096 * 8192;
  EXPECT_NEAR(plan.model_flops / (8192 * (6 * matrices + attention)), 1, 1e-9);
}

TEST(Collectives, RingTimesFollowTheAlphaBetaModel) {
  Cluster cluster = parse_cluster(hardware(), "32xA100-80GB");
  LinkEfficiency links{1.0, 1e-6, 1.0, 1e-5};
  Collectives c(cluster, links);
  double bytes = 1e9, link = cluster.device.link_bandwidth;
  EXPECT_NEAR(c.all_gather({8, 1}, bytes), 7e-6 + 7.0 / 8 * bytes / link, 1e-12);
  EXPECT_NEAR(c.all_reduce({8, 1}, bytes), 2 * (7e-6 + 7.0 / 8 * bytes / link), 1e-12);
  EXPECT_EQ(c.all_reduce({1, 1}, bytes), 0);
  // One rank per node: its own share of the node's adapters.
  double share = cluster.device_network_bandwidth();
  EXPECT_NEAR(c.all_gather({4, 8}, bytes), 3e-5 + 3.0 / 4 * bytes / share, 1e-9);
  EXPECT_EQ(c.nodes({4, 8}), 4);
  EXPECT_EQ(c.ranks_per_node({32, 1}), 8);
}

TEST(Collectives, FewRanksReachASmallerShareOfTheLinks) {
  Cluster cluster = parse_cluster(hardware(), "16xH100");
  LinkEfficiency links{1.0, 0, 1.0, 0, 0.3};
  Collectives few(cluster, links), all(cluster, LinkEfficiency{1.0, 0, 1.0, 0});
  EXPECT_DOUBLE_EQ(few.all_gather({8, 1}, 1e9), all.all_gather({8, 1}, 1e9));
  EXPECT_DOUBLE_EQ(few.all_gather({4, 1}, 1e9), all.all_gather({4, 1}, 1e9) / 0.9);
  EXPECT_DOUBLE_EQ(few.all_gather({2, 1}, 1e9), all.all_gather({2, 1}, 1e9) / 0.8);
}

// Seconds of waiting between stages on the cluster of the nanotron sweep: two neighbours, every micro-batch.
TEST(Time, PipelinesOfTheNanotronSweepWaitWhereItsRunsDo) {
  const ModelShape model = make_model_shape(*known_model("nanotron-3.57B"));
  auto waits = [&](const char* program, const char* devices, int zero, int64_t dp, int64_t pp) {
    Cluster cluster = parse_cluster(hardware(), devices);
    spec::ParallelSpec p;
    p.zero = zero;
    (zero > 0 ? p.shard : p.replica) = dp;
    p.pp = pp;
    p.tp = cluster.num_devices / (dp * pp);
    p.sequence_parallel = p.tp > 1;
    p.seq_len = 4096;
    p.global_batch = 256;
    Efficiency e = find_efficiency(cluster.device, program);
    double transfer = plan_step(model, p, cluster, find_software(program), e).time.pipeline_transfer;
    return transfer > static_cast<double>(p.micro_batches()) * e.message_delay;
  };
  EXPECT_TRUE(waits("nanotron", "512xH100", 1, 16, 4));
  EXPECT_FALSE(waits("nanotron", "256xH100", 1, 16, 4));
  EXPECT_TRUE(waits("nanotron-again", "256xH100", 1, 16, 4));
  EXPECT_FALSE(waits("nanotron-kept", "256xH100", 1, 16, 4));
  EXPECT_TRUE(waits("nanotron", "32xH100", 0, 4, 8));
  EXPECT_FALSE(waits("nanotron", "32xH100", 0, 2, 8));
  EXPECT_FALSE(waits("nanotron", "32xH100", 1, 4, 8));
  EXPECT_FALSE(waits("nanotron", "8xH100", 0, 4, 2));
}

// The two halves of a sum have no tree: over four nodes a ring takes three long steps each, the tree two each way.
TEST(Time, SequenceParallelismPassesNodesOneByOne) {
  Gpt3 gpt;
  gpt.p.tp = 32;
  gpt.p.pp = 2;
  Efficiency e;
  e.links = {1.0, 0, 1.0, 1e-3};
  auto traffic = [&] { return plan_step(gpt.model, gpt.p, gpt.cluster, gpt.software, e).time.tensor_parallel; };
  double sums = traffic();
  gpt.p.sequence_parallel = true;
  EXPECT_GT(traffic(), sums);
  gpt.p.tp = 8;
  double halves = traffic();
  gpt.p.sequence_parallel = false;
  EXPECT_DOUBLE_EQ(traffic(), halves);
}

TEST(Collectives, AWholeNodeUsesAllItsAdapters) {
  Cluster cluster = parse_cluster(hardware(), "16xH100");
  Collectives c(cluster, LinkEfficiency{1.0, 0, 1.0, 0});
  double both = c.all_gather({16, 1}, 1e9), alone = c.all_gather({2, 8}, 1e9);
  EXPECT_LT(both, alone);
  Collectives single(cluster, LinkEfficiency{1.0, 0, 1.0, 0}, true);
  EXPECT_GT(single.all_gather({16, 1}, 1e9), 4 * both);
}

TEST(Collectives, TokensSentOncePerNodeSaveTraffic) {
  Cluster cluster = parse_cluster(hardware(), "64xH100");
  Collectives c(cluster, LinkEfficiency{});
  EXPECT_EQ(c.distinct_share({8, 1}, 8), 1);                // one node
  EXPECT_NEAR(c.distinct_share({64, 1}, 8), 0.656, 0.001);  // 8 nodes: 8 (1 - (7/8)^8) of 8 copies
}

TEST(Efficiency, DevicesWithoutMeasurementsGetTheirBestProductLessATenth) {
  const DeviceSpec& device = hardware().device("MI300X");
  auto bf16 = static_cast<size_t>(MatrixFormat::bf16);
  ASSERT_GT(device.attainable[bf16], 0);
  Efficiency e = find_efficiency(device, "sinter");
  EXPECT_GT(e.gemm, 0.3);
  EXPECT_LT(e.gemm, 0.95);
}

}  // namespace
}  // namespace sinter::plan
