#include "plan/training_plan.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "plan/models.h"
#include "spec/trained_layouts.h"

namespace sinter::plan {
namespace {

TrainingRequest request(const char* model, const char* gpus) {
  TrainingRequest r;
  r.model = resolve_model(model).spec;
  r.cluster = parse_cluster(load_hardware("/dev/null"), gpus);
  r.software = find_software("sinter");
  return r;
}

std::string error_of(const TrainingRequest& r) {
  try {
    make_training_plan(r);
  } catch (const base::Error& e) {
    return e.what();
  }
  return "(no error)";
}

TEST(TrainingPlan, ChosenLayoutUsesEveryDeviceAndFits) {
  for (auto [model, gpus] : {std::pair{"gpt2", "1xH100"},
                             {"llama-3.1-8b", "64xH100"},
                             {"llama-3.1-70b", "128xA100-80GB"},
                             {"mixtral-8x7b", "64xH100"},
                             {"llama-3.1-8b", "24xA100"}}) {
    TrainingRequest r = request(model, gpus);
    TrainingPlan plan = make_training_plan(r);
    EXPECT_TRUE(plan.fits) << model;
    EXPECT_EQ(plan.parallel.ranks(), r.cluster.num_devices) << model;
    EXPECT_EQ(spec::layout_problem(plan.parallel, r.model), "") << model;
    EXPECT_LE(plan.memory.worst().device.total(), r.cluster.device.memory_bytes) << model;
    for (const Candidate& other : plan.layouts) EXPECT_GE(other.step.seconds, plan.step.seconds);
  }
}

TEST(TrainingPlan, WhatIsPlannedForGpusIsWhatTheTrainerRuns) {
  const TrainingPlan plan = make_training_plan(request("llama-3-8b", "16x8xA100-40GB"));
  EXPECT_FALSE(plan.trained);  // nothing is to be said beside it
  EXPECT_TRUE(spec::untrained_keys(plan.parallel).empty()) << spec::describe(plan.parallel);
  EXPECT_EQ(plan.parallel.ranks(), 128);
  EXPECT_LE(plan.memory.worst().device.total(), 39.4 * (1LL << 30));
}

TEST(TrainingPlan, DevicesSayWhatTheTrainerRunsThemWith) {
  const HardwareTable table = load_hardware("/dev/null");
  EXPECT_EQ(table.device("H100").backend(), TrainBackend::cuda);
  EXPECT_EQ(table.device("EPYC-9654").backend(), TrainBackend::cpu);
  for (const char* name : {"MI300X", "TPU-v5e", "Gaudi2"})
    EXPECT_EQ(table.device(name).backend(), TrainBackend::none) << name;
}

TEST(TrainingPlan, WhatDoesNotFitSaysHowManyDevicesWould) {
  TrainingRequest r = request("llama-3.1-70b", "8xA100-80GB");
  TrainingPlan plan = make_training_plan(r);
  EXPECT_FALSE(plan.fits);
  ASSERT_GT(plan.devices_needed, 8);
  r.cluster.num_devices = plan.devices_needed;
  EXPECT_TRUE(make_training_plan(r).fits);
}

TEST(TrainingPlan, WishesAreKept) {
  TrainingRequest r = request("llama-3.1-8b", "64xH100");
  r.wish = {.tp = 4, .pp = 2, .micro_batch = 2, .zero = 1, .recompute = spec::Recompute::full};
  TrainingPlan plan = make_training_plan(r);
  EXPECT_EQ(plan.parallel.tp, 4);
  EXPECT_EQ(plan.parallel.pp, 2);
  EXPECT_EQ(plan.parallel.micro_batch, 2);
  EXPECT_EQ(plan.parallel.dp(), 8);
  EXPECT_EQ(plan.parallel.recompute, spec::Recompute::full);
}

TEST(TrainingPlan, ImpossibleWishesNameWhatWouldDo) {
  TrainingRequest huge = request("gpt2", "8xH100");
  huge.wish.tp = 9999999999999;
  EXPECT_NE(error_of(huge).find("tp 9999999999999 does not divide"), std::string::npos) << error_of(huge);
  TrainingRequest r = request("llama-3.1-8b", "64xH100");
  r.wish.tp = 3;
  EXPECT_NE(error_of(r).find("nearest that does is 2"), std::string::npos) << error_of(r);
  r.wish = {.pp = 5};
  EXPECT_NE(error_of(r).find("does not divide 64 devices"), std::string::npos) << error_of(r);
  r.wish = {.zero = 7};
  EXPECT_NE(error_of(r).find("expected 0, 1, 2 or 3"), std::string::npos) << error_of(r);
}

TEST(TrainingPlan, CostIsStepsTimesStepTimesDevices) {
  TrainingRequest r = request("llama-3.1-8b", "64xH100");
  r.tokens = 1e12;
  r.cluster.price_per_hour = 3;
  TrainingPlan plan = make_training_plan(r);
  EXPECT_GE(plan.steps * static_cast<double>(plan.parallel.global_batch * plan.parallel.seq_len), 1e12);
  double hours = plan.steps * plan.step.seconds * 64 / 3600 / plan.reliability.goodput;
  EXPECT_NEAR(plan.cost.gpu_hours / hours, 1, 1e-12);
  EXPECT_NEAR(plan.cost.money, 3 * hours, 1e-6 * hours);
}

TEST(TrainingPlan, StorageRatesGiveLoadingAndCheckpointTime) {
  TrainingRequest r = request("llama-3.1-8b", "8xH100");
  r.cluster.storage = {20e9, 10e9};
  TrainingPlan plan = make_training_plan(r);
  EXPECT_NEAR(plan.reliability.write_s, 8'030'261'248 * 14 / 10e9, 1e-6);
  EXPECT_NEAR(plan.weights_load_seconds, 8'030'261'248 * 2 / 20e9, 1e-6);
  EXPECT_LT(plan.reliability.goodput, 1);
}

TEST(TrainingPlan, UsualBatchesGrowWithTheModel) {
  EXPECT_EQ(usual_global_batch(124e6, 1024, 8), 512);
  EXPECT_EQ(usual_global_batch(8e9, 4096, 8), 512);
  EXPECT_EQ(usual_global_batch(405e9, 8192, 16384), 2048);
  EXPECT_EQ(usual_global_batch(8e9, 4096, 24) % 3, 0);
}

}  // namespace
}  // namespace sinter::plan
