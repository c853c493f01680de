#include "plan/memory.h"

#include <gtest/gtest.h>

#include "plan/check/points.h"
#include "plan/models.h"
#include "plan/own_memory.h"
#include "spec/stages.h"

namespace sinter::plan {
namespace {

// A bare model whose parameters are all in one place, so that bytes per parameter can be read off.
ModelShape bare_model(double parameters) {
  ModelShape model;
  model.vocab = 1;
  model.hidden = 1;
  model.num_layers = 1;
  model.num_heads = model.num_kv_heads = 1;
  model.kinds = {BlockShape{}};
  model.kinds[0].cut_parameters = static_cast<int64_t>(parameters);
  model.kind_of_layer = {0};
  return model;
}

Software no_overhead() {
  Software software;
  software.overhead_bytes = 0;
  return software;
}

double state_gb(double parameters, int zero, int64_t ways, base::DType gradients) {
  spec::ParallelSpec p;
  p.shard = ways;
  p.zero = zero;
  p.main_gradients = gradients;
  p.global_batch = ways;
  p.seq_len = 1;
  return plan_memory(bare_model(parameters), p, no_overhead()).worst().device.model_state() / 1e9;
}

TEST(Memory, SixteenBytesPerParameterWithGradientsInSixteenBits) {
  const double billions[] = {1, 7, 13, 70, 405};
  for (double b : billions) EXPECT_NEAR(state_gb(b * 1e9, 0, 1, base::DType::bf16), 16 * b, 1e-6);
}

TEST(Memory, MainGradientsInFullPrecisionAreTheirOwnLineOfFourBytes) {
  spec::ParallelSpec p;
  p.seq_len = 1;
  MemoryParts parts = plan_memory(bare_model(1e9), p, no_overhead()).worst().device;
  EXPECT_NEAR(parts.weights / 1e9, 2, 1e-9);
  EXPECT_NEAR(parts.gradients / 1e9, 4, 1e-9);
  EXPECT_NEAR(parts.master / 1e9, 4, 1e-9);
  EXPECT_NEAR(parts.optimizer / 1e9, 8, 1e-9);
  EXPECT_NEAR(parts.model_state() / 1e9, 18, 1e-9);
}

// Rajbhandari et al. 2020, figure 1: 7.5 billion parameters over 64 devices.
TEST(Memory, ZeroStagesGiveThePublishedFigures) {
  EXPECT_NEAR(state_gb(7.5e9, 0, 64, base::DType::bf16), 120, 0.05);
  EXPECT_NEAR(state_gb(7.5e9, 1, 64, base::DType::bf16), 31.4, 0.05);
  EXPECT_NEAR(state_gb(7.5e9, 2, 64, base::DType::bf16), 16.6, 0.05);
  EXPECT_NEAR(state_gb(7.5e9, 3, 64, base::DType::bf16), 1.9, 0.05);
}

TEST(Memory, HybridShardingDividesByTheShardGroupOnly) {
  spec::ParallelSpec p;
  p.shard = 8;
  p.replica = 4;
  p.zero = 3;
  p.global_batch = 32;
  p.seq_len = 1;
  p.main_gradients = base::DType::bf16;
  double state = plan_memory(bare_model(8e9), p, no_overhead()).worst().device.model_state();
  EXPECT_NEAR(state, 8e9 * 16 / 8, 1);
}

struct Gpt3 {
  ModelShape model = make_model_shape(gpt_spec(96, 12288, 96, 51200, 2048));
  Software software = find_software("megatron-2021");
  spec::ParallelSpec p;
  Gpt3() { p.seq_len = 2048; }
  double per_sbh(double bytes) const { return bytes / (2048.0 * 12288.0); }
  BlockActivations block() const { return block_activations(model, model.kinds[0], p, software); }
};

// Korthikanti et al. 2022: a layer keeps sbh (34 + 5 as/h), of which attention's 5as/h is 80 for GPT-3.
TEST(Memory, ActivationsAreTheTermsOfKorthikanti) {
  Gpt3 gpt;
  EXPECT_NEAR(gpt.per_sbh(gpt.block().attention), 11 + 2, 1e-9);  // with the norm's input
  EXPECT_NEAR(gpt.per_sbh(gpt.block().mlp), 19 + 2, 1e-9);
  EXPECT_NEAR(gpt.per_sbh(gpt.block().attention_core), 80, 1e-9);
  EXPECT_NEAR(gpt.per_sbh(gpt.block().total()), 114, 1e-9);
  EXPECT_NEAR(gpt.per_sbh(gpt.block().checkpoint), 2, 1e-9);
  gpt.p.tp = 8;
  EXPECT_NEAR(gpt.per_sbh(gpt.block().total()), 10 + 24.0 / 8 + 80.0 / 8, 1e-9);
  gpt.p.sequence_parallel = true;
  EXPECT_NEAR(gpt.per_sbh(gpt.block().total()), 114.0 / 8, 1e-9);
}

// Sequence parallelism: what two regions gather is 2sbh each, of which a rank holds one part in t anyway.
TEST(Memory, KeptGatheredInputsAreTwoFullWidthsPerLayer) {
  Gpt3 gpt;
  gpt.p.tp = 8;
  gpt.p.sequence_parallel = true;
  double again = gpt.block().total();
  gpt.software.keeps_gathered = true;
  EXPECT_NEAR(gpt.per_sbh(gpt.block().total() - again), 4 * 7.0 / 8, 1e-9);
  gpt.p.sequence_parallel = false;
  double plain = gpt.block().total();
  gpt.software.keeps_gathered = false;
  EXPECT_EQ(gpt.block().total(), plain);
}

TEST(Memory, SelectiveRecomputeSavesSeventyPercentOfGpt3) {
  Gpt3 gpt;
  BlockActivations a = gpt.block();
  double saved = a.attention_core / a.total();
  EXPECT_NEAR(saved, 0.70, 0.005);
}

TEST(Memory, TheFirstStageOfOneForwardOneBackwardHoldsTheWholeModelsActivations) {
  Gpt3 gpt;
  gpt.software.overhead_bytes = 0;
  gpt.p.tp = 8;
  gpt.p.sequence_parallel = true;
  gpt.p.recompute = spec::Recompute::selective;
  gpt.p.pp = 8;
  gpt.p.global_batch = 64;
  double layer = 34.0 / 8 * 2048 * 12288;
  auto first = [&] { return plan_stage_memory(gpt.model, gpt.p, gpt.software, 0).device.activations; };
  double working_set = 80.0 / 8 * 2048 * 12288;  // scores of the block at work
  double dropout = 2048.0 * 12288 * 8 / 8;       // the embedding's mask, sbh p / t
  EXPECT_NEAR(first(), 96 * layer + working_set + dropout, 1);
  gpt.p.schedule = spec::PipelineKind::interleaved;
  gpt.p.interleave = 3;
  double more = 1 + 7.0 / (8 * 3);  // 1 + (p-1)/(pv)
  double in_flight = 8 * 3 + 7;     // chunks of 4 layers
  EXPECT_NEAR(first(), in_flight * 4 * layer + working_set + 2048.0 * 12288 / 8 * in_flight, 1);
  EXPECT_NEAR(in_flight * 4 / 96, more, 1e-12);
}

// 28 layers and a head worth 3.6 of them over 8 stages: nanotron gives the head a stage of its own, we one of a layer.
TEST(Memory, StagesCutByWorkCountTheHeadAsLayers) {
  spec::ModelSpec model = resolve_model("llama-2-7b").spec;
  model.num_layers = 28, model.hidden = 3072, model.num_heads = model.num_kv_heads = 32, model.head_dim = 96;
  model.ffn = 8192, model.vocab_size = 131072, model.tied_head = true;
  ModelShape shape = make_model_shape(model);
  spec::ParallelSpec p;
  p.pp = 8;
  int64_t next = 0;
  for (int64_t stage = 0; stage < 8; ++stage) {
    spec::LayerRange range = stage_layers(shape, p, find_software("nanotron"), stage);
    EXPECT_EQ(range.count, stage < 7 ? 4 : 0) << stage;
    if (range.count > 0) {
      EXPECT_EQ(range.begin, next);
    }
    next += range.count;
    const int64_t own = stage_layers(shape, p, find_software("sinter"), stage).count;
    EXPECT_EQ(own, stage < 6 ? 4 : stage == 6 ? 3 : 1);
    EXPECT_EQ(own, spec::stages_of(model, 8)[static_cast<size_t>(stage)].count) << "what runs is what is planned";
  }
  EXPECT_EQ(next, 28);
}

TEST(Memory, OffloadMovesStateToTheHost) {
  Gpt3 gpt;
  gpt.p.recompute = spec::Recompute::full;
  StageMemory here = plan_stage_memory(gpt.model, gpt.p, gpt.software, 0);
  gpt.p.offload.optimizer = true;
  StageMemory moved = plan_stage_memory(gpt.model, gpt.p, gpt.software, 0);
  EXPECT_EQ(moved.device.optimizer + moved.device.master, 0);
  EXPECT_NEAR(moved.host_bytes, here.device.optimizer + here.device.master, 1);
  EXPECT_LT(moved.device.total(), here.device.total());
}

// The general formulas with the profile of our own trainer come to what its exact ones say.
TEST(Memory, TheProfileOfOurTrainerAgreesWithItsOwnFormulas) {
  for (const char* name : {"llama-3.1-8b", "qwen2-7b", "gpt2-xl"}) {
    spec::ModelSpec spec = resolve_model(name).spec;
    for (spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full}) {
      spec::ParallelSpec p;
      p.micro_batch = p.global_batch = 4;
      p.seq_len = std::min<int64_t>(2048, spec.max_positions);
      p.recompute = recompute;
      Software software = find_software("sinter");
      software.overhead_bytes = 0;
      OwnRun run{.num_tokens = 4 * p.seq_len, .num_sequences = 4, .recompute = recompute, .compute = p.compute};
      double exact = own_trainer_memory(spec, run).total();
      EXPECT_NEAR(plan_memory(make_model_shape(spec), p, software).worst().device.total() / exact, 1, 0.03)
          << name << " " << spec::recompute_name(recompute);
    }
  }
}

TEST(Memory, ExpertsAreDividedByExpertParallelism) {
  ModelShape model = make_model_shape(*known_model("Qwen3_30B_a3B"));
  spec::ParallelSpec p;
  p.shard = 8;
  p.zero = 1;
  p.global_batch = 8;
  double whole = stage_parameters(model, p, 0).experts;
  p.ep = 8;
  EXPECT_NEAR(stage_parameters(model, p, 0).experts, whole / 8, 1);
  EXPECT_NEAR(stage_parameters(model, p, 0).experts * 8 + stage_parameters(model, p, 0).dense,
              static_cast<double>(model.total_parameters()), 1);
}

}  // namespace
}  // namespace sinter::plan
