// The planner's formulas for our own trainer against the trainer's plan, which comes from running the model on the
// `shapes` backend, and against the allocator's high-water mark of a real step.
#include "plan/own_memory.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "plan/models.h"
#include "train/optimizer.h"
#include "train/step.h"

namespace sinter::train {
namespace {

struct Compared {
  double formula, shapes_peak, shapes_arena;
};

Compared compare(const spec::ModelSpec& model, int64_t sequences, int64_t length, spec::Recompute recompute,
                 core::DType compute) {
  StepShape shape{.num_tokens = sequences * length,
                  .num_sequences = sequences,
                  .window = length,
                  .recompute = recompute,
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
            << spec::family_name(model.family) << " length " << length << " " << spec::recompute_name(recompute)
            << ": formula " << c.formula << " shapes " << c.shapes_peak;
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
  for (const spec::ParameterSpec& p : spec::make_parameter_table(model)) {
    if (p.role == spec::ParameterRole::matrix) matrices += static_cast<size_t>(p.num_elements());
  }
  EXPECT_NEAR(double(fp8.fp8_bytes), 2.0 * double(matrices), 1e4);  // both orders, and a few scales
  EXPECT_LT(fp8.train_peak_bytes, bf16.train_peak_bytes);
}

// Small models of every family, so that a real step is quick.
std::vector<std::pair<const char*, spec::ModelSpec>> small_models() {
  std::vector<std::pair<const char*, spec::ModelSpec>> models;
  for (const char* name : {"gpt2", "llama-3.1-8b", "qwen3-8b", "mixtral-8x7b"}) {
    spec::ModelSpec m = shortened(name, 3);
    m.vocab_size = 5000;
    m.hidden = 128, m.num_heads = 4, m.head_dim = 32, m.ffn = 512;
    m.num_kv_heads = m.family == spec::Family::gpt2 ? 4 : 2;
    if (m.moe.num_experts > 0) m.moe.ffn = 256;
    m.max_positions = 1024;
    models.push_back({name, m});
  }
  return models;
}

// The whole of a rank's memory, held against the allocator's high-water mark over a step that runs.
TEST(OwnMemory, AStepThatRunsReachesWhatTheFormulasSay) {
  const core::Device cpu{core::DeviceKind::cpu, 0};
  core::Allocator& memory = core::runtime(cpu).allocator();
  double worst = 0;
  for (const auto& [name, model] : small_models()) {
    for (spec::Recompute recompute : {spec::Recompute::none, spec::Recompute::selective, spec::Recompute::full}) {
      for (core::DType compute : {core::DType::f32, core::DType::bf16}) {
        const int64_t sequences = 2, length = 64, T = sequences * length, micro_batches = 2;
        StepShape shape{.num_tokens = T,
                        .num_sequences = sequences,
                        .window = length,
                        .max_micro_batches = micro_batches,
                        .recompute = recompute,
                        .compute = compute,
                        .seed = 3};
        std::unique_ptr<comm::Communicator> comm = comm::make_self();
        const size_t before = memory.stats().current_bytes;
        memory.reset_peak();
        models::ParameterStore store(model, {.device = cpu, .compute = compute, .trains = true});
        store.initialize(1);
        models::Transformer transformer(model, store);
        Optimizer optimizer({}, store);
        const parallel::Mesh mesh(*comm);
        StepRunner runner(transformer, shape, plan_step(model, shape), mesh);
        data::MicroBatch batch;
        for (int64_t s = 0; s < sequences; ++s)
          batch.add_sequence(std::vector<int32_t>(static_cast<size_t>(length), 7));
        batch.set_next_token_targets();
        batch.num_supervised = sequences * (length - 1);
        runner.run({batch, batch}, 0);
        core::Tensor control = core::make_tensor<float>(memory, {2}, {1.0f, 1.0f});
        optimizer.update(control, 1.0);
        const double peak = static_cast<double>(memory.stats().peak_bytes - before);
        plan::OwnRun run{.num_tokens = T,
                         .num_sequences = sequences,
                         .max_micro_batches = micro_batches,
                         .recompute = recompute,
                         .compute = compute};
        const double formula = plan::own_trainer_memory(model, run).total();
        worst = std::max(worst, std::abs(formula / peak - 1));
        EXPECT_NEAR(formula / peak, 1, 0.03)
            << name << " recompute " << spec::recompute_name(recompute) << " " << base::dtype_name(compute)
            << ": formula " << formula << " peak " << peak;
      }
    }
  }
  std::printf("formulas against the allocator's high-water mark: %.2f %% off at most\n", 100 * worst);
}

TEST(OwnMemory, ShortGradientsAndMomentsAreCounted) {
  for (const char* name : {"gpt2", "mixtral-8x7b"}) {
    const spec::ModelSpec model = shortened(name, 2);
    models::ParameterStore store(model, {.device = {core::DeviceKind::shapes, 0},
                                         .compute = core::DType::bf16,
                                         .trains = true,
                                         .gradients = core::DType::bf16});
    size_t gradients = 0;
    for (const core::Tensor& grad : store.gradients()) gradients += grad.bytes();
    plan::OwnRun run{.num_tokens = 256,
                     .num_sequences = 1,
                     .compute = core::DType::bf16,
                     .moments = core::DType::bf16,
                     .gradients = core::DType::bf16};
    const plan::MemoryParts parts = plan::own_trainer_memory(model, run);
    EXPECT_NEAR(parts.gradients / static_cast<double>(gradients), 1, 0.001) << name;
    const Optimizer optimizer({.states = core::DType::bf16}, store);
    EXPECT_NEAR(parts.optimizer / static_cast<double>(optimizer.state_bytes()), 1, 0.001) << name;
  }
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
