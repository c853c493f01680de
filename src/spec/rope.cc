#include "spec/rope.h"

#include <algorithm>
#include <cmath>

namespace sinter::spec {
namespace {

constexpr double kTwoPi = 6.283185307179586;

std::vector<float> plain_inv_freq(double theta, int64_t head_dim) {
  std::vector<float> inv_freq;
  for (int64_t i = 0; i < head_dim; i += 2) {
    // In f32 like the reference, so that angles at far positions agree.
    float exponent = static_cast<float>(i) / static_cast<float>(head_dim);
    inv_freq.push_back(1.0f / std::pow(static_cast<float>(theta), exponent));
  }
  return inv_freq;
}

// Long wavelengths are slowed by `factor`, short ones kept, those between blended.
void apply_llama3(const RopeSpec& rope, std::vector<float>& inv_freq) {
  const double old_context = static_cast<double>(rope.original_max_positions);
  const double long_wave = old_context / rope.low_freq_factor, short_wave = old_context / rope.high_freq_factor;
  for (float& f : inv_freq) {
    double wave = kTwoPi / f;
    if (wave > long_wave) {
      f = static_cast<float>(f / rope.factor);
    } else if (wave >= short_wave) {
      double smooth = (old_context / wave - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      f = static_cast<float>((1 - smooth) * f / rope.factor + smooth * f);
    }
  }
}

// Dimensions that turn often keep their speed, those that turn rarely are slowed, with a linear ramp between.
void apply_yarn(const RopeSpec& rope, int64_t head_dim, std::vector<float>& inv_freq) {
  auto correction_dim = [&](double rotations) {
    return static_cast<double>(head_dim) *
           std::log(static_cast<double>(rope.original_max_positions) / (rotations * kTwoPi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction_dim(rope.beta_fast), high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    double keep = 1 - std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    inv_freq[i] = static_cast<float>(inv_freq[i] / rope.factor * (1 - keep) + inv_freq[i] * keep);
  }
}

}  // namespace

std::vector<float> rope_inv_freq(const RopeSpec& rope, int64_t head_dim, int64_t sequence_length) {
  double theta = rope.theta;
  if (rope.kind == RopeKind::dynamic) {
    double trained = static_cast<double>(rope.original_max_positions);
    double length = std::max(static_cast<double>(sequence_length), trained);
    double dim = static_cast<double>(head_dim);
    theta *= std::pow(rope.factor * length / trained - (rope.factor - 1), dim / (dim - 2));
  }
  std::vector<float> inv_freq = plain_inv_freq(theta, head_dim);
  if (rope.kind == RopeKind::linear) {
    for (float& f : inv_freq) f = static_cast<float>(f / rope.factor);
  }
  if (rope.kind == RopeKind::llama3) apply_llama3(rope, inv_freq);
  if (rope.kind == RopeKind::yarn) apply_yarn(rope, head_dim, inv_freq);
  for (size_t i = 0; i < rope.divisors.size() && i < inv_freq.size(); ++i) inv_freq[i] /= rope.divisors[i];
  return inv_freq;
}

float rope_scale(const RopeSpec& rope) {
  if (rope.kind != RopeKind::yarn) return 1.0f;
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  auto scale_of = [&](double mscale) { return rope.factor <= 1 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0; };
  if (rope.mscale != 0 && rope.mscale_all_dim != 0) {
    return static_cast<float>(scale_of(rope.mscale) / scale_of(rope.mscale_all_dim));
  }
  return static_cast<float>(scale_of(1.0));
}

}  // namespace sinter::spec
