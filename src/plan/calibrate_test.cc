#include "plan/calibrate.h"

#include <gtest/gtest.h>

#include <array>

#include "base/error.h"
#include "plan/models.h"
#include "plan/time.h"

namespace sinter::plan {
namespace {

DeviceSpec cpu() {
  DeviceSpec d;
  d.name = "test-cpu";
  d.memory_bytes = 64e9;
  d.bandwidth = 50e9;
  d.flops[static_cast<size_t>(MatrixFormat::fp32)] = 2e12;
  d.flops[static_cast<size_t>(MatrixFormat::bf16)] = 4e12;
  return d;
}

spec::ModelSpec small(int64_t layers, int64_t hidden) {
  spec::ModelSpec s = resolve_model("gpt2").spec;
  s.num_layers = layers;
  s.hidden = hidden;
  s.num_heads = s.num_kv_heads = hidden / 64;
  s.ffn = 4 * hidden;
  s.vocab_size = 8192;
  return s;
}

// A step as a machine with these shares would run it.
MeasuredStep made_step(const DeviceSpec& truth, MatrixFormat format, spec::ModelSpec model, int64_t sequences,
                       int64_t length) {
  MeasuredStep step{.model = model, .sequences = sequences, .seq_len = length};
  Cluster cluster;
  cluster.device = truth;
  cluster.per_node = 1;
  cluster.network.bandwidth = 1e9;
  spec::ParallelSpec p;
  p.micro_batch = p.global_batch = sequences;
  p.seq_len = length;
  if (format == MatrixFormat::fp32) p.compute = base::DType::f32;
  StepTime t = plan_step(make_model_shape(model), p, cluster, find_software("sinter"),
                         find_efficiency(truth, "sinter", format), format)
                   .time;
  step.matmul = t.matmul;
  step.attention = t.attention;
  step.elementwise = t.elementwise;
  step.loss = t.loss;
  step.optimizer = t.optimizer;
  return step;
}

TEST(Calibrate, RecoversTheSharesOfAMachine) {
  for (MatrixFormat format : {MatrixFormat::fp32, MatrixFormat::bf16}) {
    DeviceSpec truth = cpu();
    truth.training[static_cast<size_t>(format)] = {0.8, 0.3, 0.6, 2e-5, 5e-6, 0.5, 0.4, 0.2, 0.9, 0.7};
    std::vector<MeasuredStep> steps{
        made_step(truth, format, small(4, 256), 2, 128), made_step(truth, format, small(4, 768), 2, 512),
        made_step(truth, format, small(2, 512), 1, 256), made_step(truth, format, small(3, 1024), 1, 64),
        made_step(truth, format, small(6, 128), 1, 64)};
    DeviceSpec device = cpu();
    TrainingShares found = fit_training_shares(device, format, steps);
    EXPECT_NEAR(found.gemm / 0.8, 1, 0.05);
    EXPECT_NEAR(found.attention / 0.3, 1, 0.05);
    EXPECT_NEAR(found.memory / 0.6, 1, 0.05);
    EXPECT_NEAR(found.loss / 0.2, 1, 0.01);
    EXPECT_NEAR(found.optimizer / 0.9, 1, 0.01);
    device.training[static_cast<size_t>(format)] = found;
    MeasuredStep other = made_step(truth, format, small(12, 768), 4, 256);
    EXPECT_NEAR(predict_step(device, format, other).seconds() / other.seconds(), 1, 0.05);
  }
}

TEST(Calibrate, OneDisturbedStepHardlyMovesTheFit) {
  DeviceSpec truth = cpu();
  truth.training[static_cast<size_t>(MatrixFormat::fp32)] = {0.8, 0.3, 0.6, 2e-5, 5e-6, 0.5, 0.4, 0.2, 0.9, 0.7};
  std::vector<MeasuredStep> steps;
  for (auto [layers, hidden, length] : {std::array<int64_t, 3>{4, 256, 128},
                                        {4, 768, 512},
                                        {2, 512, 256},
                                        {3, 1024, 64},
                                        {6, 128, 64},
                                        {4, 384, 1024},
                                        {2, 1024, 256},
                                        {3, 512, 128}}) {
    steps.push_back(made_step(truth, MatrixFormat::fp32, small(layers, hidden), 2, length));
  }
  steps[7].matmul *= 2;
  DeviceSpec device = cpu();
  device.training[static_cast<size_t>(MatrixFormat::fp32)] = fit_training_shares(device, MatrixFormat::fp32, steps);
  MeasuredStep other = made_step(truth, MatrixFormat::fp32, small(12, 768), 4, 256);
  EXPECT_NEAR(predict_step(device, MatrixFormat::fp32, other).seconds() / other.seconds(), 1, 0.03);
}

TEST(Calibrate, NoConstantIsNegative) {
  // The second column would have to be subtracted; the fit goes without it.
  std::vector<double> x = fit_nonnegative({{1, 2, 4}, {0.1, 0.4, 3}});
  EXPECT_GT(x[0], 0);
  EXPECT_EQ(x[1], 0);
  x = fit_nonnegative({{0.5, 0.25}, {0.5, 0.75}});
  EXPECT_NEAR(x[0], 1, 1e-9);
  EXPECT_NEAR(x[1], 1, 1e-9);
}

TEST(Calibrate, OneStepIsNotEnough) {
  EXPECT_THROW(
      fit_training_shares(cpu(), MatrixFormat::fp32, {made_step(cpu(), MatrixFormat::fp32, small(2, 256), 1, 64)}),
      base::Error);
}

TEST(Calibrate, MeasuredSharesSurviveTheHardwareFile) {
  DeviceSpec d = cpu();
  d.training[static_cast<size_t>(MatrixFormat::bf16)] = {0.71, 0.22, 1.3, 1.5e-5, 4e-6, 0.5, 0.6, 0.7, 0.8, 0.9};
  HardwareTable table;
  table.add_toml(device_toml(d), "written");
  const TrainingShares& back = table.devices.at(0).training[static_cast<size_t>(MatrixFormat::bf16)];
  EXPECT_NEAR(back.gemm, 0.71, 1e-6);
  EXPECT_NEAR(back.gemm_start, 1.5e-5, 1e-11);
  EXPECT_NEAR(back.gemm_memory, 0.5, 1e-6);
  EXPECT_NEAR(back.optimizer, 0.8, 1e-6);
  EXPECT_NEAR(find_efficiency(table.devices[0], "sinter", MatrixFormat::bf16).memory, 1.3, 1e-6);
  EXPECT_NE(find_efficiency(table.devices[0], "sinter", MatrixFormat::fp32).memory, 1.3);
}

}  // namespace
}  // namespace sinter::plan
