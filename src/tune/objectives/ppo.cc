#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "tune/objectives/policy.h"

namespace sinter::tune {

KlEstimate parse_kl_estimate(std::string_view name) {
  const std::vector<std::string> names = {"k1", "k2", "k3", "abs"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    base::fail("there is no KL estimate '{}'{}; estimates are {}", name, base::did_you_mean(name, names),
               fmt::join(names, ", "));
  return static_cast<KlEstimate>(found - names.begin());
}

double kl_estimate(KlEstimate estimate, double logp, double reference) {
  const double d = logp - reference;
  switch (estimate) {
    case KlEstimate::k1:
      return d;
    case KlEstimate::k2:
      return d * d / 2;
    case KlEstimate::k3:
      return std::expm1(-d) + d;
    case KlEstimate::absolute:
      return std::abs(d);
  }
  return d;
}

void estimate_advantages(std::span<const double> rewards, std::span<const double> values, double gamma, double lambda,
                         std::span<double> advantages, std::span<double> returns) {
  double next_advantage = 0, next_value = 0;
  for (size_t t = rewards.size(); t-- > 0;) {
    const double surprise = rewards[t] + gamma * next_value - values[t];
    next_advantage = surprise + gamma * lambda * next_advantage;
    next_value = values[t];
    advantages[t] = next_advantage;
    returns[t] = next_advantage + values[t];
  }
}

void whiten(std::span<double> values, bool shifts) {
  if (values.size() < 2) return;
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (double v : values) sum += v;
  const double mean = sum / n;
  for (double v : values) squares += (v - mean) * (v - mean);
  const double scale = 1 / std::sqrt(squares / (n - 1) + 1e-8);
  for (double& v : values) v = (v - mean) * scale + (shifts ? 0 : mean);
}

TokenTerms clipped_policy_loss(double logp, double old, double advantage, double low, double high) {
  const double ratio = std::exp(logp - old);
  const double free = -advantage * ratio, clipped = -advantage * std::clamp(ratio, 1 - low, 1 + high);
  // Where both are equal the ratio is inside its bounds, and so is the gradient.
  return clipped > free ? TokenTerms{clipped, 0, true} : TokenTerms{free, free, false};
}

TokenTerms clipped_value_loss(double value, double old, double returned, double range) {
  const double near = std::clamp(value, old - range, old + range);
  const double free = (value - returned) * (value - returned), clipped = (near - returned) * (near - returned);
  if (clipped > free) return {clipped / 2, near == value ? value - returned : 0, true};
  return {free / 2, value - returned, false};
}

}  // namespace sinter::tune
