#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"
#include "tune/objectives/policy.h"

namespace sinter::tune {
namespace {

constexpr double kLeastDeviation = 1e-4;  // added to standard deviations

struct Moments {
  double mean = 0, deviation = 0;
};
// Over what is not NaN; NaN where nothing is, and for the deviation of a single value.
Moments moments_of(std::span<const double> values) {
  double sum = 0, squares = 0, n = 0;
  for (double v : values) {
    if (!std::isnan(v)) sum += v, ++n;
  }
  const double mean = sum / n;
  for (double v : values) {
    if (!std::isnan(v)) squares += (v - mean) * (v - mean);
  }
  return {mean, std::sqrt(squares / (n - 1))};
}

double or_zero(double v) { return std::isnan(v) ? 0 : v; }

// Weighted sums of each row's rewards; NaN where no function gave any.
std::vector<double> add_up(const std::vector<double>& weights, std::span<const double> rewards, size_t functions) {
  std::vector<double> sums(rewards.size() / functions, 0.0);
  for (size_t row = 0; row < sums.size(); ++row) {
    bool has_any = false;
    for (size_t k = 0; k < functions; ++k) {
      const double reward = rewards[row * functions + k];
      has_any |= !std::isnan(reward);
      sums[row] += weights[k] * or_zero(reward);
    }
    if (!has_any) sums[row] = std::nan("");
  }
  return sums;
}

}  // namespace

std::vector<double> group_advantages(const AdvantageOptions& options, std::span<const double> rewards,
                                     int64_t functions) {
  const auto K = static_cast<size_t>(functions), group = static_cast<size_t>(options.group);
  SINTER_CHECK(functions > 0 && options.group > 1, "groups of {} answers with {} rewards; expected 2 or more with 1",
               options.group, functions);
  SINTER_CHECK(rewards.size() % (K * group) == 0, "{} rewards are no whole groups of {} answers with {} each",
               rewards.size(), group, K);
  std::vector<double> weights = options.weights.empty() ? std::vector<double>(K, 1.0) : options.weights;
  SINTER_CHECK(weights.size() == K, "{} weights for {} rewards", weights.size(), K);
  std::vector<double> scores(rewards.begin(), rewards.end());
  if (options.sum == RewardSum::normalize_first) {
    std::vector<double> column(group);
    for (size_t first = 0; first < scores.size(); first += group * K) {
      for (size_t k = 0; k < K; ++k) {
        for (size_t i = 0; i < group; ++i) column[i] = scores[first + i * K + k];
        const Moments m = moments_of(column);
        for (size_t i = 0; i < group; ++i) {
          double& score = scores[first + i * K + k];
          if (!std::isnan(score)) score = (score - m.mean) / (or_zero(m.deviation) + kLeastDeviation);
        }
      }
    }
  }
  std::vector<double> sums = add_up(weights, scores, K);
  const Moments all = moments_of(sums);
  if (options.sum == RewardSum::normalize_first) {
    for (double& s : sums) s = or_zero((s - all.mean) / (or_zero(all.deviation) + kLeastDeviation));
    return sums;
  }
  for (size_t first = 0; first < sums.size(); first += group) {
    const std::span<double> rows = std::span(sums).subspan(first, group);
    const Moments m = moments_of(rows);
    const double divisor =
        options.scale == RewardScale::none
            ? 1
            : or_zero(options.scale == RewardScale::group ? m.deviation : all.deviation) + kLeastDeviation;
    for (double& s : rows) s = or_zero((s - m.mean) / divisor);
  }
  return sums;
}

double overlong_penalty(int64_t tokens, int64_t longest, int64_t cache) {
  SINTER_CHECK(cache > 0 && cache <= longest, "an overlong cache of {} tokens; expected 1 to {}", cache, longest);
  const double over = static_cast<double>(longest - cache - tokens) / static_cast<double>(cache);
  return std::clamp(over, -1.0, 0.0);
}

GroupLoss parse_group_loss(std::string_view name) {
  const std::vector<std::string> names = {"grpo", "bnpo", "dapo", "dr_grpo", "cispo"};
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    base::fail("there is no loss '{}'{}; losses are {} (gspo is grpo with sequence_ratio)", name,
               base::did_you_mean(name, names), fmt::join(names, ", "));
  return static_cast<GroupLoss>(found - names.begin());
}

void check_group_options(const GroupOptions& options) {
  SINTER_CHECK(options.epsilon > 0 && options.epsilon < 1, "epsilon is {}, expected more than 0 and less than 1",
               options.epsilon);
  SINTER_CHECK(options.epsilon_high >= 0, "epsilon_high is {}, expected 0 (as epsilon) or more", options.epsilon_high);
  SINTER_CHECK(options.delta == 0 || options.delta > 1, "delta is {}, expected 0 (none) or more than 1", options.delta);
  SINTER_CHECK(options.beta >= 0, "beta is {}, expected 0 or more", options.beta);
  SINTER_CHECK(options.loss != GroupLoss::dr_grpo || options.longest > 0,
               "dr_grpo divides by the longest length an answer can have, which is {}", options.longest);
}

GroupTerms group_loss(const GroupOptions& options, const GroupRow& row, std::span<double> d_logp) {
  const size_t n = row.logp.size();
  const double A = row.advantage, low = 1 - options.epsilon,
               bound = options.epsilon_high > 0 ? options.epsilon_high : options.epsilon,
               high = options.loss == GroupLoss::cispo ? bound : 1 + bound;
  std::fill(d_logp.begin(), d_logp.end(), 0.0);
  GroupTerms out;
  if (n == 0) return out;
  double mean_ratio = 0;
  for (size_t t = 0; t < n; ++t) mean_ratio += (row.logp[t] - row.old[t]) / static_cast<double>(n);
  double through_sequence = 0;  // derivative by the sequence's log-ratio
  for (size_t t = 0; t < n; ++t) {
    const double ratio = std::exp(options.sequence_ratio ? mean_ratio : row.logp[t] - row.old[t]);
    double d_ratio = 0;  // derivative by the log of the ratio
    if (options.loss == GroupLoss::cispo) {
      const double weight = std::min(ratio, high);  // a constant
      out.loss -= weight * A * row.logp[t];
      d_logp[t] -= weight * A;
      out.clipped_high += ratio > high;
    } else {
      const double capped = options.delta > 0 ? std::min(ratio, options.delta) : ratio;
      const double free = capped * A, clipped = std::clamp(ratio, low, high) * A;
      out.loss -= std::min(free, clipped);
      // Outside its bounds the clipped one is constant; inside both are the same.
      if (free <= clipped && capped == ratio) d_ratio = -ratio * A;
      out.clipped_low += ratio < low && A < 0;
      out.clipped_high += ratio > high && A > 0;
    }
    if (options.beta > 0) {
      const double d = row.reference[t] - row.logp[t], k3 = std::expm1(d) - d, slope = -std::expm1(d);
      const double factor = options.kl_times_ratio ? ratio : 1;
      out.loss += options.beta * factor * k3;
      out.kl += factor * k3;
      d_logp[t] += options.beta * factor * slope;
      if (options.kl_times_ratio) d_ratio += options.beta * k3 * ratio;
    }
    if (options.sequence_ratio) {
      through_sequence += d_ratio;
    } else {
      d_logp[t] += d_ratio;
    }
  }
  for (double& d : d_logp) d += through_sequence / static_cast<double>(n);
  return out;
}

double group_weight(const GroupOptions& options, int64_t row_tokens, int64_t rows, int64_t tokens) {
  switch (options.loss) {
    case GroupLoss::grpo:
      return 1 / (static_cast<double>(rows) * static_cast<double>(std::max<int64_t>(row_tokens, 1)));
    case GroupLoss::dr_grpo:
      return 1 / (static_cast<double>(rows) * static_cast<double>(options.longest));
    default:
      return 1 / static_cast<double>(std::max<int64_t>(tokens, 1));
  }
}

double distillation_loss(std::span<const double> teacher, std::span<const double> student,
                         std::span<double> d_student) {
  double loss = 0, teacher_sum = 0, student_sum = 0;
  for (size_t k = 0; k < teacher.size(); ++k) {
    const double p = std::exp(teacher[k]);
    teacher_sum += p;
    student_sum += std::exp(student[k]);
    loss += p * (teacher[k] - student[k]);
    d_student[k] = -p;
  }
  const double p_rest = 1 - teacher_sum, q_rest = std::max(1 - student_sum, 1e-12);
  if (p_rest <= 1e-9) return loss;
  loss += p_rest * (std::log(p_rest) - std::log(q_rest));
  // d(-p_rest log(1 - sum q)) / d log q_k = p_rest q_k / (1 - sum q)
  if (1 - student_sum > 1e-12) {
    for (size_t k = 0; k < student.size(); ++k) d_student[k] += p_rest * std::exp(student[k]) / q_rest;
  }
  return loss;
}

}  // namespace sinter::tune
