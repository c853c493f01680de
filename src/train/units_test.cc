// The small parts of training, each on its own.
#include <gtest/gtest.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "kernels/kernel_list.h"
#include "spec/trained_layouts.h"
#include "train/guard.h"
#include "train/metrics.h"
#include "train/muon.h"
#include "train/noise_scale.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/stop_request.h"

namespace sinter::train {
namespace {

namespace fs = std::filesystem;

TEST(Schedule, WarmsUpThenFollowsItsShapeToTheFinalRatio) {
  spec::ScheduleRecipe s{.kind = spec::ScheduleKind::cosine, .warmup = 10, .final_ratio = 0.1, .decay_share = 0.2};
  EXPECT_NEAR(lr_factor(s, 0, 100), 1.0 / 11, 1e-12);
  EXPECT_NEAR(lr_factor(s, 9, 100), 10.0 / 11, 1e-12);
  EXPECT_NEAR(lr_factor(s, 10, 100), 1.0, 1e-12);
  EXPECT_NEAR(lr_factor(s, 99, 100), 0.1, 1e-12);
  s.kind = spec::ScheduleKind::linear;
  EXPECT_NEAR(lr_factor(s, 99, 100), 0.1, 1e-12);
  EXPECT_NEAR(lr_factor(s, 54, 100), 0.1 + 0.9 * (1 - 44.0 / 89), 1e-12);
  s.kind = spec::ScheduleKind::wsd;
  EXPECT_EQ(lr_factor(s, 79, 100), 1.0);
  EXPECT_NEAR(lr_factor(s, 99, 100), 0.1, 1e-12);
  s.kind = spec::ScheduleKind::constant;
  EXPECT_EQ(lr_factor(s, 99, 100), 1.0);
}

TEST(TrainedLayouts, AnAxisThatDoesNotDivideItsRanksIsNamed) {
  spec::ParallelSpec mixed, experts;
  mixed.tp = mixed.cp = mixed.pp = 2;
  EXPECT_TRUE(spec::untrained_keys(mixed).empty());
  experts.shard = 4, experts.ep = 3;
  EXPECT_EQ(spec::untrained_keys(experts), std::vector<std::string>{"ep = 3"});
}

// A guard on its own, fed numbers.
class Judge {
 public:
  explicit Judge(const spec::GuardRecipe& guard, base::DType precision = base::DType::f32, int64_t interval = 2000)
      : guard_(
            [&] {
              spec::Recipe recipe;
              recipe.guard = guard;
              recipe.train.precision = precision;
              recipe.train.loss_scale_interval = interval;
              recipe.optimizer.clip = 1.0;
              return recipe;
            }(),
            {}) {}
  // norm: of the gradient of the mean loss, without its scale.
  StepOutcome operator()(double loss, double norm) {
    const float scale = guard_.loss_scale().data<float>()[0];
    auto one = [](double v) {
      return core::make_tensor<float>(core::runtime({}).allocator(), {1}, {static_cast<float>(v)});
    };
    guard_.decide(one(10 * loss), 10, one(norm * norm * scale * scale), record_);
    return read_outcome(core::to_host<float>(record_));
  }
  DivergenceGuard& guard() { return guard_; }
  float control(int64_t i) const { return guard_.control().data<float>()[i]; }
  float scale() const { return guard_.loss_scale().data<float>()[0]; }

 private:
  DivergenceGuard guard_;
  core::Tensor record_{core::runtime({}).allocator(), {kernels::kRecordSize}, core::DType::f32};
};

TEST(Guard, SkipsWhatIsNotFiniteAndStopsForGoodAfterTooMany) {
  Judge judge({.max_skips = 2});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(judge(2.0, 1.0).is_applied());
  EXPECT_EQ(judge.control(kernels::kControlApply), 1.0f);
  EXPECT_EQ(judge(nan, 1.0).verdict, kernels::kStepSkippedNan);
  EXPECT_EQ(judge.control(kernels::kControlApply), 0.0f);
  EXPECT_EQ(judge(2.0, INFINITY).verdict, kernels::kStepSkippedNan);
  EXPECT_EQ(judge(nan, 1.0).verdict, kernels::kStepStoppedSkips);
  // Steps that were enqueued before the host noticed must not be applied.
  EXPECT_EQ(judge(2.0, 1.0).verdict, kernels::kStepIgnored);
  EXPECT_EQ(judge.control(kernels::kControlApply), 0.0f);
  EXPECT_EQ(judge.guard().state().updates, 1);
}

TEST(Guard, StopsAtOnceWhenToldSo) {
  Judge judge({.on_nan = spec::GuardAction::stop});
  EXPECT_EQ(judge(INFINITY, 1.0).verdict, kernels::kStepStoppedNan);
}

TEST(Guard, FindsOutliersByZScoreAndRemembersAcrossACheckpoint) {
  const spec::GuardRecipe recipe{.on_outlier = spec::GuardAction::skip, .max_z = 5, .window = 16};
  Judge judge(recipe), resumed(recipe), fresh(recipe), stopping({.on_outlier = spec::GuardAction::stop, .window = 16});
  for (int i = 0; i < 21; ++i) EXPECT_TRUE(judge(2.0 + 0.01 * (i % 3), 1.0 + 0.1 * (i % 2)).is_applied());
  resumed.guard().set_state(judge.guard().state());
  stopping.guard().set_state(judge.guard().state());
  const StepOutcome outlier = resumed(9.0, 1.0);
  EXPECT_EQ(outlier.verdict, kernels::kStepSkippedOutlier);
  EXPECT_NE(resumed.guard().reason(outlier).find("9.0"), std::string::npos);
  EXPECT_EQ(judge(9.0, 1.0).loss_z, outlier.loss_z) << "the same bits after a checkpoint";
  EXPECT_TRUE(resumed(2.01, 1.05).is_applied());
  EXPECT_EQ(resumed.guard().state().updates, 22);
  EXPECT_TRUE(fresh(9.0, 1.0).is_applied());
  EXPECT_EQ(stopping(9.0, 1.0).verdict, kernels::kStepStoppedOutlier);
}

TEST(Guard, ClipsToTheNormAndCountsUpdatesForTheBiasCorrections) {
  Judge judge({});
  EXPECT_NEAR(judge(2.0, 4.0).norm, 4.0, 1e-6);
  EXPECT_NEAR(judge.control(kernels::kControlFactor), 0.25, 1e-6);
  EXPECT_NEAR(judge.control(kernels::kControlCorrection1), 1 / (1 - 0.9), 1e-4);
  EXPECT_TRUE(judge(2.0, 0.5).is_applied());
  EXPECT_EQ(judge.control(kernels::kControlFactor), 1.0f);
  EXPECT_NEAR(judge.control(kernels::kControlCorrection2), 1 / std::sqrt(1 - 0.95 * 0.95), 1e-4);
}

TEST(Guard, TheLossScaleShrinksOnOverflowAndGrowsAfterGoodSteps) {
  Judge judge({.max_skips = 1}, base::DType::f16, 3);
  EXPECT_EQ(judge.scale(), 65536.0f);
  for (int i = 1; i <= 4; ++i) {  // overflows are not divergence: more of them than max_skips
    EXPECT_EQ(judge(2.0, INFINITY).verdict, kernels::kStepSkippedOverflow);
    EXPECT_EQ(judge.scale(), 65536.0f / static_cast<float>(1 << i));
  }
  const StepOutcome good = judge(2.0, 2.0);
  EXPECT_TRUE(good.is_applied());
  EXPECT_NEAR(good.norm, 2.0, 1e-5);
  EXPECT_NEAR(judge.control(kernels::kControlFactor), 0.5 / 4096, 1e-9);
  Judge resumed({.max_skips = 1}, base::DType::f16, 3);
  resumed.guard().set_state(judge.guard().state());
  for (Judge* j : {&judge, &resumed}) {
    (*j)(2.0, 2.0);
    EXPECT_EQ(j->scale(), 4096.0f);
    (*j)(2.0, 2.0);
    EXPECT_EQ(j->scale(), 8192.0f);
  }
  EXPECT_EQ(judge(std::numeric_limits<double>::quiet_NaN(), 1.0).verdict, kernels::kStepSkippedNan);
}

// Gradients drawn as signal plus noise: the estimate must find the ratio that was put in.
TEST(NoiseScale, FindsTheNoiseThatWasPutIn) {
  const size_t n = 2000;
  const double signal = 0.05, noise = 1.0;  // per element; the noise scale is n noise^2 / (n signal^2) tokens
  base::CounterRng rng{3, 0};
  NoiseScale estimate;
  uint64_t draw = 0;
  for (int step = 0; step < 200; ++step) {
    double small = 0, large = 0;
    for (size_t i = 0; i < n; ++i) {
      const double a = signal + noise / std::sqrt(64.0) * rng.normal(draw++);      // mean of 64 tokens
      const double rest = signal + noise / std::sqrt(448.0) * rng.normal(draw++);  // of the other 448
      small += a * a;
      large += std::pow((64 * a + 448 * rest) / 512, 2);
    }
    estimate.add(small, 64, large, 512);
  }
  ASSERT_TRUE(estimate.tokens());
  EXPECT_NEAR(*estimate.tokens(), noise * noise / (signal * signal), 40);
}

TEST(StopRequest, NamesTheSignalAndGivesTheHandlersBack) {
  struct sigaction before {
  }, after{};
  ::sigaction(SIGUSR1, nullptr, &before);
  {
    StopRequest stop({});
    EXPECT_EQ(stop.reason(), "");
    std::raise(SIGUSR1);
    EXPECT_EQ(stop.reason(), "SIGUSR1");
  }
  ::sigaction(SIGUSR1, nullptr, &after);
  EXPECT_EQ(before.sa_handler, after.sa_handler);
  {
    StopRequest stop({});
    std::raise(SIGHUP);
    EXPECT_EQ(stop.reason(), "SIGHUP");
  }
  std::signal(SIGHUP, SIG_IGN);  // nohup
  {
    StopRequest stop({});
    std::raise(SIGHUP);
    EXPECT_EQ(stop.reason(), "");
  }
  std::signal(SIGHUP, SIG_DFL);
  EXPECT_EQ(StopRequest({.time_limit = 10, .time_margin = 20}).reason(), "time limit");
  EXPECT_EQ(StopRequest({.time_limit = 100, .time_margin = 20}, StopRequest::clock_seconds() - 90).reason(),
            "time limit")
      << "planning took time too";
  EXPECT_EQ(StopRequest({.time_limit = 1000, .time_margin = 20}).reason(), "");
}

spec::ModelSpec tiny_model() {
  spec::ModelSpec s;
  s.vocab_size = 40;
  s.hidden = 16;
  s.num_layers = 2;
  s.num_heads = s.num_kv_heads = 2;
  s.head_dim = 8;
  s.ffn = 24;
  s.max_positions = 32;
  s.rope.kind = spec::RopeKind::standard;
  return s;
}

void fill_gradients(models::ParameterStore& store) {
  for (auto& slot : store.slots()) {
    base::CounterRng rng{9, static_cast<uint64_t>(slot.offset)};
    for (int64_t i = 0; i < slot.info.num_elements(); ++i) {
      slot.parameter.grad.tensor().data<float>()[i] = rng.normal(static_cast<uint64_t>(i));
    }
  }
}

core::Tensor make_control(float scale, float apply = 1.0f) {
  const std::vector<float> values{scale, apply, 1 / (1 - 0.9f), 1 / std::sqrt(1 - 0.95f), 1.0f, apply};
  return core::make_tensor<float>(core::runtime({}).allocator(), {kernels::kControlSize}, values);
}

TEST(Muon, TheUpdateOfAMatrixHasSingularValuesNearOne) {
  models::ParameterStore store(tiny_model(), {.trains = true});
  Optimizer optimizer({.kind = spec::OptimizerKind::muon, .lr = 0, .weight_decay = 0, .muon_lr = 1.0}, store);
  fill_gradients(store);
  optimizer.update(make_control(0.3f), 1.0);
  // Masters were zero, so they now hold the update: -sqrt(max(1, rows / columns)) times an orthogonal matrix.
  const float* w = store.get("layers.0.mlp.down.weight").master.data<float>();  // (16, 24)
  double diagonal = 0, off = 0;
  for (int a = 0; a < 16; ++a) {
    for (int b = 0; b < 16; ++b) {
      double dot = 0;
      for (int k = 0; k < 24; ++k) dot += double(w[a * 24 + k]) * w[b * 24 + k];
      (a == b ? diagonal : off) += a == b ? dot : std::abs(dot);
    }
  }
  EXPECT_NEAR(diagonal / 16, 1.0, 0.35);  // the quintic's plateau is 0.7 to 1.2
  EXPECT_LT(off / 240, 0.12);
  // Vectors and embeddings follow AdamW, whose rate is 0 here.
  EXPECT_EQ(store.get("embedding.weight").master.data<float>()[0], 0.0f);
}

TEST(Muon, TheUpdateOfATallMatrixGrowsWithItsSide) {
  models::ParameterStore store(tiny_model(), {.trains = true});
  Optimizer optimizer({.kind = spec::OptimizerKind::muon, .lr = 0, .weight_decay = 0, .muon_lr = 1.0}, store);
  fill_gradients(store);
  optimizer.update(make_control(1.0f), 1.0);
  const float* gate = store.get("layers.0.mlp.up.weight").master.data<float>();  // (48, 16): gate and up, 24 rows each
  double squares = 0;
  for (int i = 0; i < 24 * 16; ++i) squares += double(gate[i]) * gate[i];
  // 16 singular values near 1, times the square of sqrt(24 / 16); the plateau again.
  EXPECT_NEAR(squares / 16, 24.0 / 16, 0.35);
}

TEST(Muon, FusedTensorsAreOrthogonalisedPartByPart) {
  models::ParameterStore store(tiny_model(), {.trains = true});
  Optimizer optimizer({.kind = spec::OptimizerKind::muon, .lr = 0, .weight_decay = 0, .muon_lr = 1.0}, store);
  fill_gradients(store);
  // A query part a thousand times larger must not shrink the key's update.
  float* grad = store.get("layers.0.attention.qkv.weight").grad.tensor().data<float>();  // (48, 16)
  for (int i = 0; i < 16 * 16; ++i) grad[i] *= 1000;
  optimizer.update(make_control(1.0f), 1.0);
  const float* w = store.get("layers.0.attention.qkv.weight").master.data<float>();
  double keys = 0;
  for (int i = 16 * 16; i < 32 * 16; ++i) keys += double(w[i]) * w[i];
  EXPECT_NEAR(keys / 16, 1.0, 0.4);
}

TEST(Optimizer, DecayShrinksMatricesByTheirRateAndNothingOfAdams) {
  for (auto kind :
       {spec::OptimizerKind::sgd, spec::OptimizerKind::adam, spec::OptimizerKind::adamw, spec::OptimizerKind::muon}) {
    models::ParameterStore store(tiny_model(), {.trains = true});
    store.initialize(1);
    const std::vector<float> before = core::to_host<float>(store.master());
    Optimizer optimizer({.kind = kind, .lr = 0.1, .weight_decay = 0.5, .muon_lr = 0.2}, store);
    optimizer.update(make_control(1.0f), 1.0);  // gradients are zero: decay alone moves anything
    const std::vector<float> after = core::to_host<float>(store.master());
    for (const auto& slot : store.slots()) {
      const bool is_muon = kind == spec::OptimizerKind::muon && slot.info.role == spec::ParameterRole::matrix;
      const bool decays = slot.info.shape.rank() >= 2 && kind != spec::OptimizerKind::adam;
      const float kept = decays ? 1.0f - 0.5f * (is_muon ? 0.2f : 0.1f) : 1.0f;
      for (int64_t i = slot.offset; i < slot.offset + slot.info.num_elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_NEAR(after[at], kept * before[at], 1e-6f)
            << slot.info.name << " with optimizer " << static_cast<int>(kind);
      }
    }
  }
}

TEST(Optimizer, EveryKindMovesEveryTrainedTensorAndListsItsState) {
  for (auto kind :
       {spec::OptimizerKind::sgd, spec::OptimizerKind::adam, spec::OptimizerKind::adamw, spec::OptimizerKind::muon}) {
    models::ParameterStore store(tiny_model(), {.trains = true});
    store.initialize(1);
    const std::vector<float> before = core::to_host<float>(store.master());
    Optimizer optimizer({.kind = kind, .lr = 0.1}, store);
    fill_gradients(store);
    optimizer.update(make_control(1.0f), 1.0);
    const std::vector<float> after = core::to_host<float>(store.master());
    for (const auto& slot : store.slots()) {
      EXPECT_NE(before[static_cast<size_t>(slot.offset)], after[static_cast<size_t>(slot.offset)]) << slot.info.name;
    }
    size_t elements = 0;
    for (const Optimizer::State& state : optimizer.states()) {
      EXPECT_EQ(state.values.num_elements(), store.slots()[state.slot].info.num_elements());
      elements += static_cast<size_t>(state.values.num_elements());
    }
    EXPECT_GT(elements, 0u);
    EXPECT_GE(optimizer.state_bytes(), elements * 4);
  }
}

TEST(Metrics, NumbersThatAreNoneAreToldInWords) {
  EXPECT_EQ(number_text(2.35171), "2.3517");
  EXPECT_EQ(number_text(0.5, -1), "0.5");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::quiet_NaN()), "NaN");
  EXPECT_EQ(number_text(-std::numeric_limits<double>::infinity()), "-infinite");
}

TEST(Metrics, LinesOfStepsAfterTheResumedOneAreDropped) {
  const std::string path = (fs::temp_directory_path() / ("sinter_metrics_" + std::to_string(::getpid()))).string();
  fs::remove(path);
  {
    MetricsFile file(path, 0);
    for (int64_t step = 1; step <= 5; ++step) file.append({.step = step, .loss = 1.0 / double(step)});
  }
  std::ofstream(path, std::ios::app) << "{\"step\": \"x\"}\n{\"step\": 6, \"lo";
  MetricsFile file(path, 3);
  EXPECT_EQ(file.losses().size(), 3u);
  file.append({.step = 4, .loss = 0.5});
  const std::string content = base::read_file(path);
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 4);
  EXPECT_TRUE(content.starts_with("{\"step\":1,\"tokens\":")) << content;
  fs::remove(path);
}

}  // namespace
}  // namespace sinter::train
