#include "train/noise_scale.h"

#include <cmath>

#include "base/error.h"

namespace sinter::train {
namespace {

constexpr double kKeep = 0.95;      // of the moving averages
constexpr double kFirstSteps = 10;  // before that the ratio is noise itself

}  // namespace

void NoiseScale::add(double small_norm_squared, double small_tokens, double large_norm_squared, double large_tokens) {
  if (small_tokens <= 0 || large_tokens <= small_tokens) return;
  if (!std::isfinite(small_norm_squared) || !std::isfinite(large_norm_squared)) return;
  const double signal =
      (large_tokens * large_norm_squared - small_tokens * small_norm_squared) / (large_tokens - small_tokens);
  const double noise = (small_norm_squared - large_norm_squared) / (1 / small_tokens - 1 / large_tokens);
  signal_ = kKeep * signal_ + (1 - kKeep) * signal;
  noise_ = kKeep * noise_ + (1 - kKeep) * noise;
  count_ += 1;
}

std::optional<double> NoiseScale::tokens() const {
  if (count_ < kFirstSteps || signal_ <= 0 || noise_ <= 0) return std::nullopt;
  return noise_ / signal_;
}

void NoiseScale::set_state(const std::vector<double>& state) {
  SINTER_CHECK(state.size() == 3, "the checkpoint's noise scale has {} numbers; expected 3", state.size());
  signal_ = state[0];
  noise_ = state[1];
  count_ = state[2];
}

}  // namespace sinter::train
