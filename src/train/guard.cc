#include "train/guard.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "train/metrics.h"

namespace sinter::train {
namespace {

using core::Tensor;

kernels::StepRule make_rule(const spec::Recipe& recipe) {
  kernels::StepRule rule;
  rule.max_norm = static_cast<float>(recipe.optimizer.clip);
  rule.beta1 = static_cast<float>(recipe.optimizer.beta1);
  rule.beta2 = static_cast<float>(recipe.optimizer.beta2);
  rule.stops_on_nan = recipe.guard.on_nan == spec::GuardAction::stop;
  rule.on_outlier = static_cast<kernels::OutlierAction>(recipe.guard.on_outlier);
  rule.max_z = static_cast<float>(recipe.guard.max_z);
  rule.window = static_cast<int32_t>(recipe.guard.window);
  rule.max_skips = static_cast<int32_t>(std::min<int64_t>(recipe.guard.max_skips, 1 << 20));
  if (recipe.train.precision == base::DType::f16) {
    rule.scale_growth = 2.0f;
    rule.growth_interval = static_cast<int32_t>(std::min<int64_t>(recipe.train.loss_scale_interval, 1 << 24));
  }
  return rule;
}

}  // namespace

StepOutcome read_outcome(const std::vector<float>& record) {
  using namespace kernels;  // NOLINT: places in the record
  StepOutcome outcome;
  outcome.loss = static_cast<double>(record[kRecordLoss]);
  outcome.norm = static_cast<double>(record[kRecordNorm]);
  outcome.loss_scale = static_cast<double>(record[kRecordScale]);
  outcome.verdict = static_cast<StepVerdict>(static_cast<int32_t>(record[kRecordVerdict]));
  outcome.updates = static_cast<int64_t>(record[kRecordUpdates]);
  outcome.loss_z = static_cast<double>(record[kRecordLossZ]);
  outcome.norm_z = static_cast<double>(record[kRecordNormZ]);
  return outcome;
}

DivergenceGuard::DivergenceGuard(const spec::Recipe& recipe, core::Device device)
    : recipe_(recipe.guard),
      device_(core::runtime(device)),
      kernels_(kernels::kernels_for(device)),
      rule_(make_rule(recipe)),
      state_(device_.allocator(), {kernels::step_state_size(recipe.guard.window)}, core::DType::f32),
      control_(device_.allocator(), {kernels::kControlSize}, core::DType::f32) {
  set_state({{0.0}, {rule_.scale_growth > 0 ? recipe.train.loss_scale : 1.0, 0.0}, 0});
}

void DivergenceGuard::decide(const Tensor& loss_sum, double num_supervised, const Tensor& norm_squared,
                             const Tensor& record) {
  kernels_.step_control(device_.stream(), {.rule = rule_,
                                           .loss_sum = loss_sum,
                                           .loss_factor = static_cast<float>(1.0 / num_supervised),
                                           .norm_squared = norm_squared,
                                           .state = state_,
                                           .control = control_,
                                           .record = record});
}

std::string DivergenceGuard::reason(const StepOutcome& o) const {
  using namespace kernels;  // NOLINT: verdicts
  switch (o.verdict) {
    case kStepSkippedOverflow:
      return fmt::format("gradients overflowed at loss scale {:g}", o.loss_scale);
    case kStepSkippedOutlier:
    case kStepStoppedOutlier:
      return fmt::format("loss {:.4f} (z {:.1f}), gradient norm {:.3g} (z {:.1f}), limit z {}", o.loss, o.loss_z,
                         o.norm, o.norm_z, recipe_.max_z);
    case kStepStoppedSkips:
      return fmt::format("more than {} steps in a row skipped; the last had loss {}, gradient norm {}",
                         recipe_.max_skips, number_text(o.loss, -1), number_text(o.norm, -1));
    default:
      return fmt::format("loss {}, gradient norm {}", number_text(o.loss, -1), number_text(o.norm, -1));
  }
}

DivergenceGuard::State DivergenceGuard::state() const {
  const std::vector<float> values = core::to_host<float>(state_);
  const auto window = static_cast<size_t>(rule_.window), count = static_cast<size_t>(values[kernels::kStateCount]),
             next = static_cast<size_t>(values[kernels::kStateNext]);
  State out{{static_cast<double>(values[kernels::kStateSkips])},
            {static_cast<double>(values[kernels::kStateScale]), static_cast<double>(values[kernels::kStateGoodSteps])},
            static_cast<int64_t>(values[kernels::kStateUpdates])};
  const size_t oldest = count == window ? next : 0;
  for (size_t row = 0; row < 2; ++row) {
    for (size_t i = 0; i < count; ++i) {
      out.window.push_back(static_cast<double>(values[kernels::kStateWindow + row * window + (oldest + i) % window]));
    }
  }
  return out;
}

void DivergenceGuard::set_state(const State& state) {
  SINTER_CHECK(state.window.size() % 2 == 1, "the checkpoint's guard state has {} numbers; expected an odd count",
               state.window.size());
  SINTER_CHECK(state.loss_scale.size() == 2 && state.loss_scale[0] > 0,
               "the checkpoint's loss scale is not a pair of a positive scale and a count");
  std::vector<float> values(static_cast<size_t>(state_.num_elements()), 0.0f);
  const auto window = static_cast<size_t>(rule_.window);
  const size_t stored = state.window.size() / 2, count = std::min(stored, window);
  for (size_t row = 0; row < 2; ++row) {  // the newest, when the window has become shorter
    for (size_t i = 0; i < count; ++i) {
      values[kernels::kStateWindow + row * window + i] =
          static_cast<float>(state.window[1 + row * stored + (stored - count) + i]);
    }
  }
  values[kernels::kStateUpdates] = static_cast<float>(state.updates);
  values[kernels::kStateSkips] = static_cast<float>(state.window[0]);
  values[kernels::kStateCount] = static_cast<float>(count);
  values[kernels::kStateNext] = static_cast<float>(count % window);
  values[kernels::kStateScale] = rule_.scale_growth > 0 ? static_cast<float>(state.loss_scale[0]) : 1.0f;
  values[kernels::kStateGoodSteps] = static_cast<float>(state.loss_scale[1]);
  device_.copy_to_device(state_.raw(), values.data(), state_.bytes(), device_.stream());
}

}  // namespace sinter::train
