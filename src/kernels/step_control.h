// The decision about a training step: clip, take or skip its update, by the loss and the gradient's norm. It is made
// where the numbers are, so that no host waits for them; the same code runs on every backend.
//
// What later decisions depend on is the state, a small f32 tensor on the device: counters, the loss scale, and the
// losses and norms of the last good steps. The host reads the record of a step when it has come over, some time later.
// A step that says stop also keeps every later one from being applied, so it does not matter when the host notices.
#pragma once
#include <cmath>
#include <cstdint>

#if defined(__CUDACC__)
#define SINTER_HOST_DEVICE __host__ __device__
#else
#define SINTER_HOST_DEVICE
#endif

namespace sinter::kernels {

enum class OutlierAction : int32_t { off, skip, stop };

// What is the same in every step of a run.
struct StepRule {
  float max_norm = 0;                 // largest gradient norm; 0 = no clipping
  float beta1 = 0.9f, beta2 = 0.95f;  // of the bias corrections in control
  bool stops_on_nan = false;          // loss or norm not finite: else the step is skipped
  OutlierAction on_outlier = OutlierAction::off;
  float max_z = 6;
  int32_t window = 128;    // good steps that z-scores are taken over; 0 z before there are as many
  int32_t max_skips = 20;  // in a row; one more stops
  // Dynamic loss scale: a finite loss with a norm that is not finite is an overflow of the scaled gradients. The step
  // is skipped without counting as a skip, and the scale shrinks; after growth_interval good steps it grows. 0: no
  // scaling.
  float scale_growth = 0;
  float scale_backoff = 0.5f;
  int32_t growth_interval = 2000;
};

// Places in the state. Counters are exact up to 2^24.
enum StepState : int64_t {
  kStateUpdates,     // steps applied
  kStateSkips,       // in a row
  kStateStopped,     // 1: no update is applied any more
  kStateCount,       // values in the window
  kStateNext,        // place of the next value in the window's ring
  kStateScale,       // of the loss; 1 without scaling
  kStateGoodSteps,   // since the scale last changed
  kStateWindow = 8,  // losses (window), then norms (window)
};
SINTER_HOST_DEVICE inline int64_t step_state_size(int64_t window) { return kStateWindow + 2 * window; }

enum StepVerdict : int32_t {
  kStepApplied,
  kStepSkippedNan,
  kStepSkippedOutlier,
  kStepSkippedOverflow,  // of scaled gradients
  kStepStoppedNan,
  kStepStoppedOutlier,
  kStepStoppedSkips,  // too many skips in a row
  kStepIgnored,       // after a stop
};

// Places in the record. step_control writes those up to kRecordOwn; the rest is for sums that travel with it.
enum StepRecord : int64_t {
  kRecordLoss,     // mean over supervised tokens
  kRecordNorm,     // of the gradient of the mean loss, before clipping
  kRecordVerdict,  // a StepVerdict
  kRecordLossZ,
  kRecordNormZ,
  kRecordScale,    // that this step's loss was multiplied by
  kRecordUpdates,  // steps applied, this one counted
  kRecordOwn,
  kRecordExtra = 8,
  kRecordSize = 16,
};

// Places in control, which optimizers read.
enum StepControl : int64_t {
  kControlFactor,       // multiplies every gradient
  kControlApply,        // 0: skip the update
  kControlCorrection1,  // 1 / (1 - beta1^updates)
  kControlCorrection2,  // 1 / sqrt(1 - beta2^updates)
  kControlOne,          // 1, and the decision once more: for updates whose gradients are scaled already
  kControlApplyAgain,
  kControlSize,
};

namespace step_control_detail {

SINTER_HOST_DEVICE inline bool is_finite(double x) { return x - x == 0; }

// How many deviations `value` lies above the mean of the window's values, added oldest first.
SINTER_HOST_DEVICE inline double z_score(const float* values, int64_t window, int64_t count, int64_t next,
                                         double value) {
  if (count < window) return 0;  // too early to know what is usual
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < count; ++i) mean += static_cast<double>(values[(next + i) % window]);
  mean /= static_cast<double>(count);
  for (int64_t i = 0; i < count; ++i) {
    double d = static_cast<double>(values[(next + i) % window]) - mean;
    squares += d * d;
  }
  double deviation = ::sqrt(squares / static_cast<double>(count));
  return deviation > 0 ? (value - mean) / deviation : 0;
}

// The verdict on a step, with the skips and the scale in the state moved on.
SINTER_HOST_DEVICE inline StepVerdict judge(const StepRule& rule, double loss, double norm, float* state,
                                            float* record) {
  if (state[kStateStopped] != 0) return kStepIgnored;
  const bool is_nan = !is_finite(loss) || !is_finite(norm);
  if (is_nan && is_finite(loss) && rule.scale_growth > 0 && state[kStateScale] > 1) {
    state[kStateScale] = static_cast<float>(::fmax(1.0, static_cast<double>(state[kStateScale] * rule.scale_backoff)));
    state[kStateGoodSteps] = 0;
    return kStepSkippedOverflow;
  }
  bool is_outlier = false;
  if (!is_nan && rule.on_outlier != OutlierAction::off) {
    const auto count = static_cast<int64_t>(state[kStateCount]), next = static_cast<int64_t>(state[kStateNext]);
    const float* losses = state + kStateWindow;
    double z_loss = z_score(losses, rule.window, count, next, loss);
    double z_norm = z_score(losses + rule.window, rule.window, count, next, norm);
    record[kRecordLossZ] = static_cast<float>(z_loss);
    record[kRecordNormZ] = static_cast<float>(z_norm);
    is_outlier = z_loss > static_cast<double>(rule.max_z) || z_norm > static_cast<double>(rule.max_z);
  }
  if (!is_nan && !is_outlier) return kStepApplied;
  if (is_nan ? rule.stops_on_nan : rule.on_outlier == OutlierAction::stop) {
    state[kStateStopped] = 1;
    return is_nan ? kStepStoppedNan : kStepStoppedOutlier;
  }
  state[kStateSkips] += 1;
  if (state[kStateSkips] > static_cast<float>(rule.max_skips)) {
    state[kStateStopped] = 1;
    return kStepStoppedSkips;
  }
  return is_nan ? kStepSkippedNan : kStepSkippedOutlier;
}

}  // namespace step_control_detail

// loss: mean over the step's tokens; norm_squared: of the gradient of the scaled loss.
SINTER_HOST_DEVICE inline void decide_step(const StepRule& rule, float loss, float norm_squared, float* state,
                                           float* control, float* record) {
  const double scale = static_cast<double>(state[kStateScale]);
  const double norm = ::sqrt(static_cast<double>(norm_squared)) / scale;
  record[kRecordLoss] = loss;
  record[kRecordNorm] = static_cast<float>(norm);
  record[kRecordLossZ] = record[kRecordNormZ] = 0;
  record[kRecordScale] = static_cast<float>(scale);
  const StepVerdict verdict = step_control_detail::judge(rule, static_cast<double>(loss), norm, state, record);
  const bool applies = verdict == kStepApplied;
  if (applies) {
    state[kStateSkips] = 0;
    state[kStateUpdates] += 1;
    if (rule.on_outlier != OutlierAction::off) {
      const auto next = static_cast<int64_t>(state[kStateNext]);
      state[kStateWindow + next] = loss;
      state[kStateWindow + rule.window + next] = static_cast<float>(norm);
      state[kStateNext] = static_cast<float>((next + 1) % rule.window);
      if (state[kStateCount] < static_cast<float>(rule.window)) state[kStateCount] += 1;
    }
    state[kStateGoodSteps] += 1;
    if (rule.scale_growth > 0 && state[kStateGoodSteps] >= static_cast<float>(rule.growth_interval)) {
      state[kStateScale] = static_cast<float>(::fmin(16777216.0, scale * static_cast<double>(rule.scale_growth)));
      state[kStateGoodSteps] = 0;
    }
  }
  record[kRecordVerdict] = static_cast<float>(verdict);
  record[kRecordUpdates] = state[kStateUpdates];
  const double limit = static_cast<double>(rule.max_norm);
  const double factor = limit > 0 && norm > limit ? limit / norm : 1.0;
  const double updates = static_cast<double>(state[kStateUpdates] > 0 ? state[kStateUpdates] : 1.0f);
  control[kControlFactor] = static_cast<float>(factor / scale);
  control[kControlApply] = control[kControlApplyAgain] = applies ? 1.0f : 0.0f;
  control[kControlCorrection1] = static_cast<float>(1.0 / (1.0 - ::pow(static_cast<double>(rule.beta1), updates)));
  control[kControlCorrection2] =
      static_cast<float>(1.0 / ::sqrt(1.0 - ::pow(static_cast<double>(rule.beta2), updates)));
  control[kControlOne] = 1.0f;
}

}  // namespace sinter::kernels
