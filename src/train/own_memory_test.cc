// The planner's formulas for our own trainer against the trainer's plan, which comes from running the model on the
// `shapes` backend, and against the allocator's high-water mark of a real step.
#include "plan/own_memory.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "plan/models.h"
#include "train/step.h"

namespace sinter::train {
namespace {

autograd::Recompute to_tape(spec::Recompute mode) {
  if (mode == spec::Recompute::full) return autograd::Recompute::full;
  return mode == spec::Recompute::selective ? autograd::Recompute::selective : autograd::Recompute::none;
}

struct Compared {
  double formula, shapes_peak, shapes_arena;
};

Compared compare(const spec::ModelSpec& model, int64_t sequences, int64_t length, spec::Recompute recompute,
                 core::DType compute) {
  StepShape shape{.num_tokens = sequences * length,
                  .num_sequences = sequences,
                  .window = length,
                  .recompute = to_tape(recompute),
                  .compute = compute};
  StepPlan plan = plan_step(model, shape);
  plan::OwnRun run{
      .num_tokens = shape.num_tokens, .num_sequences = sequences, .recompute = recompute, .compute = compute};
  return {plan::own_activation_peak(model, run), static_cast<double>(plan.train_peak_bytes),
          static_cast<double>(plan.arena_bytes())};
}

// A public architecture with fewer layers, so that the run on shapes is quick.
spec::ModelSpec shortened(const char* name, int64_t layers) {
  spec::ModelSpec model = plan::resolve_model(name).spec;
  model.num_layers = layers;
  if (!model.sparse_layers.empty()) model.sparse_layers.resize(static_cast<size_t>(layers));
  if (!model.window.empty()) model.window.resize(static_cast<size_t>(layers));
  return model;
}

TEST(OwnMemory, FormulasAreWithinThreePercentOfTheShapesRun) {
  double worst = 0;
  for (const char* name :
       {"gpt2", "llama-3.1-8b", "mistral-7b", "qwen2-7b", "qwen3-8b", "mixtral-8x7b", "qwen3-30b-a3b"}) {
    for (int64_t layers : {1, 4, 12}) {
      for (spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full}) {
        for (core::DType compute : {core::DType::f32, core::DType::bf16}) {
          spec::ModelSpec model = shortened(name, layers);
          Compared c = compare(model, 4, 1024, recompute, compute);
          worst = std::max(worst, std::abs(c.formula / c.shapes_peak - 1));
          EXPECT_NEAR(c.formula / c.shapes_peak, 1, 0.03)
              << name << " layers " << layers << " recompute " << spec::recompute_name(recompute) << " "
              << base::dtype_name(compute) << ": formula " << c.formula << " shapes " << c.shapes_peak;
        }
      }
    }
  }
  std::printf("formulas against the shapes run: %.2f %% off at most\n", 100 * worst);
}

TEST(OwnMemory, DropoutExtraHeadsAndShortBatchesAreCounted) {
  for (spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full}) {
    spec::ModelSpec dropping = shortened("gpt2", 6);
    dropping.dropout = {0.1f, 0.1f, 0.1f};
    spec::ModelSpec ahead = shortened("llama-3.1-8b", 6);
    ahead.mtp_heads = 2;
    for (int64_t length : {64, 2048}) {
      for (const spec::ModelSpec& model : {dropping, ahead}) {
        Compared c = compare(model, 2, length, recompute, core::DType::bf16);
        EXPECT_NEAR(c.formula / c.shapes_peak, 1, 0.03)
            << spec::family_name(model.family) << " length " << length << " " << spec::recompute_name(recompute);
      }
    }
  }
}

TEST(OwnMemory, Fp8LayersAddTheirWeightsAndHoldLessBetweenThePasses) {
  const spec::ModelSpec model = shortened("llama-3.1-8b", 4);
  StepShape shape{.num_tokens = 4096, .num_sequences = 4, .window = 1024, .compute = core::DType::bf16};
  const StepPlan bf16 = plan_step(model, shape);
  shape.fp8 = true;
  const StepPlan fp8 = plan_step(model, shape);
  EXPECT_EQ(bf16.fp8_bytes, 0u);
  size_t matrices = 0;
  for (const spec::Parameter& p : spec::make_parameter_table(model)) {
    if (p.role == spec::ParameterRole::matrix) matrices += static_cast<size_t>(p.num_elements());
  }
  EXPECT_NEAR(double(fp8.fp8_bytes), 2.0 * double(matrices), 1e4);  // both orders, and a few scales
  EXPECT_LT(fp8.train_peak_bytes, bf16.train_peak_bytes);
}

// The whole of a rank's memory, held against what the allocator hands out in a step that runs.
TEST(OwnMemory, APlannedStepUsesWhatTheFormulasSay) {
  spec::ModelSpec model = shortened("gpt2", 2);
  model.vocab_size = 5000;
  model.hidden = 128, model.num_heads = model.num_kv_heads = 4, model.head_dim = 32, model.ffn = 512;
  const int64_t sequences = 4, length = 128, T = sequences * length;
  StepShape shape{.num_tokens = T, .num_sequences = sequences, .window = length, .seed = 3};
  std::unique_ptr<comm::Communicator> comm = comm::make_self();
  const core::Device cpu{core::DeviceKind::cpu, 0};
  core::Allocator& memory = core::runtime(cpu).allocator();
  const size_t before = memory.stats().current_bytes;
  models::ParameterStore store(model, {.device = cpu, .compute = core::DType::f32, .trains = true});
  models::Transformer transformer(model, store);
  StepRunner runner(transformer, shape, plan_step(model, shape), *comm, 1 << 20);
  const size_t used = memory.stats().current_bytes - before;
  plan::OwnRun run{.num_tokens = T, .num_sequences = sequences, .num_moments = 0};
  plan::MemoryParts parts = plan::own_trainer_memory(model, run);
  EXPECT_NEAR(parts.total() / static_cast<double>(used), 1, 0.03);
}

TEST(OwnMemory, TheArenaIsLittleLargerThanThePeak) {
  double worst = 0;
  for (const char* name : {"gpt2", "llama-3.1-8b"}) {
    for (spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::full}) {
      Compared c = compare(shortened(name, 12), 4, 1024, recompute, core::DType::bf16);
      worst = std::max(worst, c.shapes_arena / c.shapes_peak - 1);
      EXPECT_NEAR(c.formula / c.shapes_arena, 1, 0.05) << name << " " << spec::recompute_name(recompute);
    }
  }
  std::printf("arena over peak: %.2f %% at most\n", 100 * worst);
}

}  // namespace
}  // namespace sinter::train
