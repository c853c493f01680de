#include "tune/run/policy_objective.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tune/run/weighted_pass.h"

namespace sinter::tune {

void GroupPolicy::forward(const train::ObjectivePass& pass) {
  const auto* batch = pass.host ? dynamic_cast<const AnswerBatch*>(pass.host->extra.get()) : nullptr;
  const bool learns = pass.context.is_recording();
  weighted_pass(pass, [&](std::span<const float> logprobs) {
    PassTerms terms{std::vector<float>(logprobs.size(), 0.0f), std::vector<float>(logprobs.size(), 0.0f)};
    std::vector<double> logp, slopes;
    for (const auto& [begin, answer, is_learned] : batch->answers) {
      const auto count = answer.tokens.size(), first = static_cast<size_t>(begin);
      logp.assign(logprobs.begin() + begin, logprobs.begin() + begin + static_cast<int64_t>(count));
      slopes.assign(count, 0.0);
      const GroupTerms own = group_loss(options_, {logp, answer.logprobs, answer.reference, answer.advantage}, slopes);
      // The loss is divided by the step's answers later (count).
      const double weight =
          !is_learned ? 0
                      : group_weight(options_, static_cast<int64_t>(count), batch->step_answers, batch->step_tokens) *
                            static_cast<double>(batch->step_answers);
      terms.losses[first] = static_cast<float>(own.loss * weight);
      for (size_t i = 0; i < count; ++i) terms.weights[first + i] = static_cast<float>(-slopes[i] * weight);
      if (!learns) continue;
      sums_.answers += 1;
      sums_.reward += answer.reward;
      sums_.tokens += static_cast<double>(count);
      sums_.finished += answer.is_finished ? 1 : 0;
      sums_.kl += own.kl;
      sums_.clipped += static_cast<double>(own.clipped_low + own.clipped_high);
      for (size_t i = 0; i < count; ++i) sums_.ratio_error += std::abs(std::exp(logp[i] - answer.logprobs[i]) - 1);
    }
    return terms;
  });
}

double GroupPolicy::count(const data::MicroBatch& batch) const {
  const auto* answers = dynamic_cast<const AnswerBatch*>(batch.extra.get());
  return answers ? static_cast<double>(answers->answers.size()) : 0;
}

std::vector<train::Objective::Metric> GroupPolicy::take_metrics() {
  const Sums s = std::exchange(sums_, {});
  std::vector<Metric> metrics{{"reward", s.reward, s.answers},
                              {"answer_tokens", s.tokens, s.answers},
                              {"finished", s.finished, s.answers},
                              {"clipped", s.clipped, s.tokens},
                              {"ratio_error", s.ratio_error, s.tokens}};
  if (options_.beta > 0) metrics.push_back({"kl", s.kl, s.tokens});
  return metrics;
}

}  // namespace sinter::tune
